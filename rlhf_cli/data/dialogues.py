r"""Read conversations as people store them, and return them as chat templates read them: a list of {role, content}.

The forms are ShareGPT's turns ({from, value}), a question and its answer ({input, output} or {human, assistant}),
roles of other names ({role: model, text: ...}), a single message, JSON text, content in parts of text, and tool calls
whose arguments are JSON text. Arrow gives every message the keys of all messages: keys without a value are left out.

`transcripts` splits whole dialogues into a prompt and answers. In Anthropic's preference data, the two texts of a pair
share everything up to the last answer, which is the prompt:

    "\n\nHuman: Hello\n\nAssistant: Hi!\n\nHuman: How are you?\n\nAssistant: Fine, thanks."
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from itertools import dropwhile, takewhile
from typing import cast

from rlhf_cli.data.rows import DIALOGUES, Dataset, RowTable, Table, at_rows, kind_of_text, map_rows, values_of
from rlhf_cli.data.source import Row, missing_column
from rlhf_cli.errors import DataError
from rlhf_cli.text.suggest import nearest

ANSWERS = ("completion", "chosen", "rejected", "reference")
_TURNS = (*DIALOGUES, "prompt", *ANSWERS)
_SETTINGS = ("tools", "chat_template_kwargs")
_GOOD, _BAD = ("true", "yes", "1", "good", "desirable"), ("false", "no", "0", "bad", "undesirable")
_TEXTS = ("text", "input_text", "output_text")  # types of parts; the last two of OpenAI's Responses
_CALLS = ("function_call", "function-call", "tool_call")
_SENDERS = ("from", "speaker")  # keys for who says a message, of ShareGPT and of transcripts
_EXCHANGES = (("input", "output"), ("human", "assistant"))  # a question and its answer, of XTuner, Firefly and ms-swift
THOUGHTS = ("reasoning_content", "thinking", "reasoning")
"""Keys of a message's reasoning; templates read the first, and some only the second."""
SPEAKERS = {
    **dict.fromkeys(("human", "user", "prompter"), "user"),
    **dict.fromkeys(
        ("gpt", "assistant", "chatgpt", "chatbot", "bing", "bard", "model", "bot", "ai", *_CALLS), "assistant"
    ),
    **dict.fromkeys(("tool", "observation", "function", "function_response", "tool_response"), "tool"),
    "system": "system",
}
"""ShareGPT's `from` -> OpenAI's role."""
ROLES = (*dict.fromkeys(SPEAKERS.values()), "developer", "ipython")  # the roles that chat templates know
SYSTEM = ("system", "system_prompt")  # columns with the text of a dialogue's system message


def _messages_in(value: object) -> object:
    """Return a conversation as a list of messages, anything else unchanged. Raise ValueError as `_message` does."""
    turns = value
    if isinstance(value, Mapping) and _has_speaker(value):
        lists = [part for part in value.values() if isinstance(part, list)]
        is_one = len(lists) < len(value) or len(set(map(len, lists))) > 1  # `datasets` has a list for every key
        turns = [value] if is_one else [dict(zip(value, turn, strict=True)) for turn in zip(*lists, strict=True)]
    if not (isinstance(turns, list) and turns and all(isinstance(turn, Mapping) for turn in turns)):
        return value
    if pair := next((pair for pair in _EXCHANGES if all({*pair} <= {*turn} for turn in turns)), None):
        turns = [message for turn in turns for message in _exchange(turn, *pair)]
    return [_message(turn) for turn in turns]


def _exchange(turn: Mapping[str, object], asked: str, answer: str) -> list[Row]:
    """Return the messages of a turn that holds what the user says and the answer to it."""
    said = {"system": turn.get("system") or None, "user": turn[asked], "assistant": turn[answer]}
    return [{"role": role, "content": text} for role, text in said.items() if text is not None]


def _message(turn: Mapping[str, object]) -> Row:
    """Return a message with OpenAI's keys and roles. Raise ValueError for an unknown speaker or role, a bad call."""
    message = {key: value for key, value in turn.items() if value is not None and value != []}
    sender_key = next((key for key in _SENDERS if key in message), "")
    sender = message.pop(sender_key, None)
    if sender is not None and "role" not in message:
        if str(sender).lower() not in SPEAKERS:
            what = f"an unknown speaker, {sender_key!r}: {sender!r}"
            raise ValueError(f"{what}; the known ones are {', '.join(SPEAKERS)}")
        content = next((message.pop(key) for key in ("value", "content", "text") if key in message), None)
        called = {"content": "", "tool_calls": content} if sender in _CALLS else {"content": content}
        message = {"role": SPEAKERS[str(sender).lower()], **called, **message}
    elif "role" in message:
        role = str(message["role"]).lower()
        if role in SPEAKERS and role not in _CALLS:
            message["role"] = SPEAKERS[role]
        elif role not in ROLES and role.isalpha() and (near := nearest(role, (*ROLES, "human"))) is not None:
            raise ValueError(f"an unknown role, {message['role']!r}: is it {near}?")
    if "content" not in message and (text := next((key for key in ("value", "text", "parts") if key in message), None)):
        message["content"] = message.pop(text)
    if "function_call" in message:  # OpenAI's earlier form
        message["tool_calls"] = [message.pop("function_call")]
    if (calls := message.get("tool_calls")) is not None:
        calls = _parsed(calls) if isinstance(calls, str) else calls
        message["tool_calls"] = [_call(call) for call in (calls if isinstance(calls, list) else [calls])]
    message["content"] = _joined(message.get("content", "" if "tool_calls" in message else None))
    if (thought := next((message[key] for key in THOUGHTS if key in message), None)) is not None:
        # transformers fills in these keys when it renders a template, but only from 5.21 on
        message = {"thinking": thought, **message, "reasoning_content": thought}
    return message


def _call(call: object) -> Row:
    """Return a tool call whose arguments are an object; OpenAI writes them as JSON text."""
    bare = _without_nulls(call)
    whole = {"type": "function", "function": bare} if isinstance(bare, dict) and "name" in bare else bare
    function = whole.get("function") if isinstance(whole, dict) else None
    if not isinstance(whole, dict) or not isinstance(function, dict):
        raise ValueError(f"a tool call without a function: {call!r:.60}")
    given = function.get("arguments", {})
    function["arguments"] = _parsed(given or "{}") if isinstance(given, str) else given
    if not isinstance(function["arguments"], dict):
        raise ValueError(f"the arguments of a tool call are not an object: {given!r:.60}")
    return whole


def _joined(content: object) -> object:
    """Return the text of content in parts; unchanged if a part is no text."""
    parts = _without_nulls(content)
    if not isinstance(parts, list):
        return content
    texts = [part.get("text", part.get("value")) if isinstance(part, dict) else part for part in parts]
    is_text = all(not isinstance(part, dict) or part.get("type", "text") in _TEXTS for part in parts)
    return "".join(map(str, texts)) if is_text and all(isinstance(text, str) for text in texts) else parts


def _without_nulls(value: object) -> object:
    """Return `value` without the keys of its objects whose value is null."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(part) for key, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list) else value


def _parsed(text: str) -> object:
    """Return the value of a JSON text, or of Python's notation of it, which pandas writes into a CSV."""
    # numpy ends a line between two objects, where Python has a comma
    for read, notation in ((json.loads, text), (ast.literal_eval, text.replace("}\n {", "}, {"))):
        try:
            value: object = read(notation)
            return value
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            pass
    raise ValueError(f"the text is not JSON: {text!r:.60}")


def as_object(value: object) -> Mapping[str, object]:
    """Return an object, or the one of a JSON text; an empty one for anything else."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        with contextlib.suppress(ValueError):
            value = _parsed(value)
    return value if isinstance(value, Mapping) else {}


def as_messages(value: object) -> object:
    """Return a conversation in any form, or its JSON text, as messages; anything else unchanged."""
    with contextlib.suppress(ValueError):
        return _messages_in(_parsed(str(value)) if _is_json(value) else value)
    return value


def _is_json(text: object) -> bool:
    """Return whether a value is text: a JSON list of messages."""
    try:
        parsed = _parsed(text) if isinstance(text, str) and text.lstrip().startswith("[") else None
    except ValueError:
        return False
    return isinstance(parsed, list) and bool(parsed) and all(map(_has_speaker, parsed))


def _has_speaker(turn: object) -> bool:
    return isinstance(turn, Mapping) and bool({"role", *_SENDERS} & set(turn))


def _read(row: Mapping[str, object], index: int, columns: Mapping[str, bool], name: str) -> Row:
    """Return the columns of a row as messages or settings; `columns` says whether a text there is JSON."""
    read: Row = {}
    for column, is_json in columns.items():
        value = row.get(column)
        try:
            if is_json and isinstance(value, str):
                value = _parsed(value) if value.strip() else None
            if column in _SETTINGS:
                read[column] = _without_nulls(value) or ({} if column == "chat_template_kwargs" else None)
            else:
                read[column] = value = _messages_in(value)
                if isinstance(value, str):
                    raise ValueError(f"it is text, and other rows hold messages: {value!r:.60}")
        except ValueError as error:
            what = f"the column {column!r} cannot be read as messages"
            expected = "[{role: user, content: ...}, ...], or ShareGPT's [{from: human, value: ...}, ...]"
            raise DataError(what, where=at_rows(name, index + 1), got=f"{error}", expected=expected) from None
    return read


def read_conversations(table: Table, columns: Sequence[str], *, is_alone: bool = True, name: str = "data") -> Table:
    """Return the rows with the conversations in `columns` as messages, unchanged if they are already.

    A `datasets.Dataset` stores them as JSON, in which a message has only its own keys. `is_alone`: the source is no
    part of a mixture, all of whose sources need the same types. Raise DataError that names the row.
    """
    known = [column for column in columns if column in table.column_names and column in (*_TURNS, *_SETTINGS)]
    first = {column: next((value for value in values_of(table, column) if value is not None), None) for column in known}
    as_json = {column for column in known if column in (*DIALOGUES, *_SETTINGS) or _is_json(first[column])}
    read = {
        column: column in as_json for column in known if column in as_json or isinstance(first[column], list | Mapping)
    }
    if isinstance(table, RowTable):
        return map_rows(table, _read, {}, columns=read, name=name) if read else table
    if is_alone:
        read = {column: read[column] for column in read if not _is_plain(table, column)}
    if not read:
        return table
    import datasets

    stored = {column: datasets.Json() if column in _SETTINGS else datasets.List(datasets.Json()) for column in read}
    features = datasets.Features(**{**table.features, **stored})
    arguments = {"columns": read, "name": name}
    mapped: Dataset = table.map(_read, with_indices=True, fn_kwargs=arguments, features=features)
    return mapped


def with_system(table: Table, columns: Sequence[str]) -> Table:
    """Return the rows with the text of a column of SYSTEM as the first message of dialogues that the user begins."""
    name = next((name for name in SYSTEM if name in table.column_names), "")

    def begun(row: Row, _: int) -> Row:
        talks = {key: cast("list[Row]", row[key]) for key in columns if kind_of_text(row[key]) == "messages"}
        said = [{"role": "system", "content": row[name]}] if isinstance(row[name], str) and row[name] else []
        return {column: [*said, *talk] for column, talk in talks.items() if talk[0]["role"] == "user"}

    first = table[0] if name and len(table) else {}
    is_there = any(kind_of_text(first.get(column)) == "messages" for column in columns)
    return map_rows(table, begun, {}) if is_there else table


def with_calls(table: Table, columns: Sequence[str]) -> Table:
    """Return the rows with a message, as JSON text, that makes the tool calls in a `completion` of JSON, as xLAM's."""
    values = values_of(table, "completion") if "completion" in columns else ()
    first = next((value for value in values if value), None)
    with contextlib.suppress(ValueError):
        calls = _parsed(first) if isinstance(first, str) else None
        if isinstance(calls, list) and all(
            isinstance(call, dict) and {"name", "arguments"} <= set(call) for call in calls
        ):
            whole = '[{{"role": "assistant", "tool_calls": {}}}]'
            return map_rows(table, lambda row, _: {"completion": whole.format(row["completion"])}, {"completion": ""})
    return table


def with_labels(table: Table, columns: Sequence[str]) -> Table:
    """Return the rows with KTO's labels as true or false if all of them are texts that say so."""
    labels = values_of(table, "label") if "label" in columns else [""]
    if not {value.lower() if isinstance(value, str) else "" for value in labels} <= {*_GOOD, *_BAD}:
        return table
    return map_rows(table, lambda row, _: {"label": row["label"].lower() in _GOOD}, {"label": ""})


def with_answers(table: Table, columns: Sequence[str]) -> Table:
    """Return the rows with answers in `columns` that are texts as the assistant's messages if prompts are messages."""
    first = table[0] if "prompt" in table.column_names and len(table) else {}
    texts = [name for name in columns if name in ANSWERS and isinstance(first.get(name), str)]
    if kind_of_text(first.get("prompt")) != "messages" or not texts:
        return table

    def said(row: Row, _: int) -> Row:
        answers = {name: row[name] for name in texts if isinstance(row[name], str)}
        return {name: [{"role": "assistant", "content": text}] for name, text in answers.items()}

    return map_rows(table, said, dict.fromkeys(texts, "prompt"))


def without_repeats(table: Table, columns: Sequence[str]) -> Table:
    """Return the rows without the prompt's messages at the beginning of answers in `columns`: TRL joins both."""
    answers = [column for column in columns if column in ANSWERS and "prompt" in table.column_names]
    both = (zip(values_of(table, "prompt"), values_of(table, answer), strict=True) for answer in answers)
    if all(_rest(prompt, said) is said for pairs in both for prompt, said in pairs):
        return table
    return map_rows(table, lambda row, _: {name: _rest(row["prompt"], row[name]) for name in answers}, {})


def _rest(prompt: object, answer: object) -> object:
    """Return an answer without the prompt (or all but its system messages) if it begins with that, else unchanged."""
    if not (kind_of_text(prompt) == kind_of_text(answer) == "messages"):
        return answer
    asked, said = cast("list[Row]", prompt), cast("list[Row]", answer)
    behind = [*dropwhile(lambda message: message["role"] in ("system", "developer"), asked)]
    starts = (start for start in (asked, behind) if start and len(start) < len(said))
    return next((said[len(start) :] for start in starts if _bare(said[: len(start)]) == _bare(start)), answer)


def _bare(messages: list[Row]) -> list[tuple[object, str, object]]:
    return [(said["role"], str(said.get("content")).strip(), said.get("tool_calls")) for said in messages]


def plain_messages(dataset: Dataset) -> Dataset:
    """Return the dataset with messages of a role and a text, which ORPO and CPO can replace by text."""
    import datasets

    plain = datasets.List({"role": datasets.Value("string"), "content": datasets.Value("string")})
    stored = {column: plain for column in _TURNS if dataset.features.get(column) == datasets.List(datasets.Json())}
    features = datasets.Features(**{**dataset.features, **stored})

    def bare(row: Mapping[str, list[Row]]) -> Row:
        return {name: [{key: message[key] for key in ("role", "content")} for message in row[name]] for name in stored}

    return dataset.map(bare, features=features) if stored else dataset


def _is_plain(dataset: Dataset, column: str) -> bool:
    """Return whether a column holds token ids, or messages with only a known role and a text."""
    item = getattr(dataset.features[column], "feature", None)
    if not isinstance(item, dict):
        return hasattr(item, "dtype")
    is_text = all(getattr(item.get(key), "dtype", None) == "string" for key in ("role", "content"))
    if set(item) != {"role", "content"} or not is_text:
        return False
    from pyarrow import compute

    messages = compute.list_flatten(dataset.data.column(column))
    return {*compute.unique(compute.struct_field(messages, "role")).to_pylist()} <= {*ROLES}


_ASSISTANT = "\n\nAssistant:"
_PAIR = ("chosen", "rejected")


def split_transcripts(table: Table, *, is_whole: bool = True, name: str = "data") -> Table:
    """Return the rows with a `prompt` and answers instead of transcripts; unchanged if they have prompts.

    A row without transcripts keeps its texts and gets an empty prompt. Raise DataError if no column holds dialogues, or
    if no row of a table that `is_whole` is a transcript.
    """
    columns = table.column_names
    if "prompt" in columns:
        return table
    missing = [column for column in _PAIR if column not in columns]
    dialogue = next((column for column in DIALOGUES if column in columns and missing), "")
    if missing and not dialogue:
        where = f"{name} (data.transcripts=true splits `chosen` and `rejected` or messages)"
        raise missing_column(missing[0], columns, where)
    made = ("prompt", "completion") if dialogue else ("prompt", *_PAIR)
    prepared = map_rows(table, split_row, dict.fromkeys(made, dialogue))
    if not is_whole or not len(prepared) or any(values_of(prepared, "prompt")):
        return prepared
    got, hint = f"{table[0].get('chosen', table[0])!r:.80}", "data.transcripts=false"
    expected = "texts such as '\\n\\nHuman: Hello\\n\\nAssistant: Hi!', the same in both up to the last answer"
    raise DataError("no row is a pair of transcripts", where=name, got=got, expected=expected, hint=hint)


def split_row(row: Mapping[str, object], _index: int = 0) -> dict[str, object]:
    """Return `prompt` and the answers of a row; of a pair without transcripts, an empty prompt and its texts.

    Of a conversation, the answer is its last message if that is the assistant's. Of a pair of them, the prompt is what
    both begin with; a rejected answer alone replaces the last message. Of transcripts, the prompt ends in
    the last "Assistant:" that both share.
    """
    if not set(_PAIR) <= set(row):
        messages = next((row[name] for name in DIALOGUES if row.get(name) is not None), None)
        messages = messages if isinstance(messages, list) else []
        end = len(messages) - (kind_of_text(messages) == "messages" and messages[-1]["role"] == "assistant")
        return {"prompt": messages[:end], "completion": messages[end:]}
    chosen, rejected = row["chosen"], row["rejected"]
    if kind_of_text(chosen) == "messages":
        better = cast("list[Row]", chosen)
        said = [{"role": "assistant", "content": rejected}] if isinstance(rejected, str) else rejected
        worse = cast("list[Row]", said) if kind_of_text(said) == "messages" else []
        if worse and worse[0]["role"] == "assistant" != better[0]["role"]:  # ms-swift's rejected_response
            return {"prompt": better[:-1], "chosen": better[-1:], "rejected": worse}
        pairs = zip(better[:-1], worse[:-1], strict=False)
        shared = len([*takewhile(lambda messages: messages[0] == messages[1], pairs)])
        return {"prompt": better[:shared] or "", "chosen": better[shared:], "rejected": worse[shared:] or rejected}
    prompt = ""
    if isinstance(chosen, str) and isinstance(rejected, str) and chosen.lstrip().startswith("Human:"):
        prompt = "".join(os.path.commonprefix((chosen, rejected)).rpartition(_ASSISTANT)[:2])  # noqa: RUF071
        chosen, rejected = chosen.removeprefix(prompt), rejected.removeprefix(prompt)
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}
