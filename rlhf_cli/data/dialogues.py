"""Read conversations as people store them, and return them as chat templates read them: a list of {role, content}.

Read are ShareGPT's turns ({from, value}), a single message, JSON text, content in parts of text, and tool calls whose
arguments are JSON text. Arrow gives every message the keys of all messages: keys without a value are left out. Works
without `datasets`.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from rlhf_cli.data.rows import RowTable, values_of
from rlhf_cli.data.source import Row
from rlhf_cli.errors import DataError

if TYPE_CHECKING:
    import datasets

    Dataset: TypeAlias = datasets.Dataset

DIALOGUES = ("messages", "conversations")
"""Columns that hold whole conversations."""
_TURNS = (*DIALOGUES, "prompt", "completion", "chosen", "rejected", "reference")
_SETTINGS = ("tools", "chat_template_kwargs")

_CALLS = ("function_call", "function-call", "tool_call")
SPEAKERS = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bing", "bard", "model", "bot", *_CALLS), "assistant"),
    **dict.fromkeys(("tool", "observation", "function_response", "tool_response", "ipython"), "tool"),
    "system": "system",
}
"""ShareGPT's `from` -> OpenAI's role."""


def read_conversation(value: object) -> object:
    """Return a value as a list of messages; anything that is not a conversation is returned unchanged.

    Raise ValueError for a message without a role, an unknown ShareGPT speaker, and a tool call that is not JSON.
    """
    turns = [value] if isinstance(value, Mapping) and {"role", "from"} & set(value) else value
    if not (isinstance(turns, list) and turns and all(isinstance(turn, Mapping) for turn in turns)):
        return value
    return [_message(turn) for turn in turns]


def _message(turn: Mapping[str, object]) -> Row:
    message = {key: value for key, value in turn.items() if value is not None and value != []}
    sender = message.pop("from", None)
    if "role" not in message and sender is not None:
        if (role := SPEAKERS.get(str(sender).lower())) is None:
            raise ValueError(f"an unknown speaker, 'from': {sender!r}; known are {', '.join(SPEAKERS)}")
        content = message.pop("value", message.pop("content", None))
        message = {"role": role, "content": content, **message}
        if sender in _CALLS:
            calls = _parsed(content)
            message |= {"content": "", "tool_calls": calls if isinstance(calls, list) else [calls]}
    elif message.get("role") in ("human", "gpt"):
        message["role"] = SPEAKERS[str(message["role"])]
    if "tool_calls" in message:
        given = message["tool_calls"]
        calls = given if isinstance(given, list) else _parsed(given)
        message["tool_calls"] = [_call(call) for call in (calls if isinstance(calls, list) else [calls])]
    message.setdefault("content", "" if "tool_calls" in message else None)
    message["content"] = _joined(message["content"])
    return message


def _call(call: object) -> Row:
    """Return a tool call whose arguments are an object; OpenAI writes them as JSON text."""
    bare = without_nulls(call)
    if not isinstance(bare, dict):
        raise ValueError(f"a tool call that is no object: {call!r:.60}")
    whole: Row = {"type": "function", "function": bare} if "name" in bare else bare
    function = whole.get("function")
    if isinstance(function, dict) and isinstance(given := function.get("arguments"), str):
        if not isinstance(parsed := _parsed(given or "{}"), dict):
            raise ValueError(f"arguments of a tool call that are no object: {given!r:.60}")
        function["arguments"] = parsed
    return whole


def _joined(content: object) -> object:
    """Return the text of content in parts; unchanged if a part is no text."""
    if not isinstance(content, list):
        return content
    texts = []
    for part in content:
        bare = without_nulls(part)
        if isinstance(bare, dict) and bare.get("type", "text") != "text":
            return without_nulls(content)
        texts.append(bare.get("text", bare.get("value")) if isinstance(bare, dict) else bare)
    return "".join(map(str, texts)) if all(isinstance(text, str) for text in texts) else content


def without_nulls(value: object) -> object:
    """Return `value` without the keys of its objects whose value is null."""
    if isinstance(value, Mapping):
        return {key: without_nulls(one) for key, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


def _parsed(text: object) -> object:
    """Return the value of a JSON text, or of Python's notation of it, which pandas writes into a CSV."""
    try:
        return json.loads(str(text))
    except ValueError:
        try:
            return ast.literal_eval(str(text))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise ValueError(f"text that is no JSON: {text!r:.60}") from None


def _is_json(value: object) -> bool:
    """Return whether a text is a JSON list of messages."""
    if not (isinstance(value, str) and value.lstrip().startswith("[")):
        return False
    try:
        parsed = _parsed(value)
    except ValueError:
        return False
    return isinstance(parsed, list) and bool(parsed) and all(_has_speaker(turn) for turn in parsed)


def _has_speaker(turn: object) -> bool:
    return isinstance(turn, Mapping) and bool({"role", "from"} & set(turn))


def _read(row: Mapping[str, object], index: int, columns: Sequence[str], json_columns: Sequence[str], name: str) -> Row:
    read: Row = {}
    for column in columns:
        value = row[column]
        try:
            if column in json_columns and isinstance(value, str):
                value = _parsed(value) if value.strip() else None
            if column in _SETTINGS:
                read[column] = without_nulls(value) or ({} if column == "chat_template_kwargs" else None)
            else:
                read[column] = value = read_conversation(value)
                if isinstance(value, str):
                    raise ValueError(f"text, where other rows hold messages: {value!r:.60}")
        except ValueError as error:
            raise DataError(
                f"the column {column!r} cannot be read as messages",
                where=f"{name}, row {index + 1} (the first row is 1)",
                got=f"{error}",
                expected="[{role: user, content: ...}, ...], or ShareGPT's [{from: human, value: ...}, ...]",
            ) from None
    return read


def _to_read(first: Mapping[str, object], columns: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return which of `columns` hold conversations or settings of a template, and which of these may be JSON text."""
    known = [name for name in columns if name in first and name in (*_TURNS, *_SETTINGS)]
    texts = [name for name in known if name not in (*DIALOGUES, *_SETTINGS) and isinstance(first[name], str)]
    as_json = [name for name in known if name in (*DIALOGUES, *_SETTINGS)]
    if texts and all(_is_json(first[name]) for name in texts):
        as_json += texts
    return [name for name in known if name in as_json or isinstance(first[name], list | Mapping)], as_json


def read_row_conversations(rows: Sequence[Row], columns: Sequence[str], *, name: str = "data") -> list[Row]:
    """Return the rows with the conversations in `columns` as messages. Raise DataError that names the row."""
    first = _first_values(RowTable(rows, sorted({key for row in rows for key in row})), columns)
    read, as_json = _to_read(first, columns)
    if not read:
        return list(rows)
    return [
        row | _read(row, number, [column for column in read if column in row], as_json, name)
        for number, row in enumerate(rows)
    ]


def read_conversations(dataset: Dataset, columns: Sequence[str], *, name: str = "data") -> Dataset:
    """Return the dataset with the conversations in `columns` as messages, unchanged if they are already.

    They are stored as JSON, in which a message has only its own keys. Raise DataError that names the row.
    """
    import datasets

    first = _first_values(dataset, columns)
    read, as_json = _to_read(first, columns)
    read = [column for column in read if not _is_plain(dataset.features[column], first[column])]
    if not read:
        return dataset
    stored = {column: datasets.Json() if column in _SETTINGS else datasets.List(datasets.Json()) for column in read}
    features = datasets.Features(**{**dataset.features, **stored})
    arguments = {"columns": read, "json_columns": as_json, "name": name}
    mapped: Dataset = dataset.map(_read, with_indices=True, fn_kwargs=arguments, features=features)
    return mapped


def plain_messages(dataset: Dataset, *, name: str = "data") -> Dataset:
    """Return the dataset with messages of a role and a text only, as ORPO and CPO need them.

    They replace messages by text, which `datasets` would store as JSON, too. Raise DataError for a tool call.
    """
    import datasets

    features = dataset.features.copy()
    as_json = [column for column in _TURNS if features.get(column) == datasets.List(datasets.Json())]
    for column in as_json:
        features[column] = datasets.List({"role": datasets.Value("string"), "content": datasets.Value("string")})

    def plain(row: Mapping[str, Sequence[Mapping[str, object]]], index: int) -> Row:
        for column in as_json:
            if any(message.get("tool_calls") or not isinstance(message["content"], str) for message in row[column]):
                where = f"{name}, row {index + 1} (the first row is 1)"
                raise DataError("this trainer of TRL reads texts only", where=where, got=f"{row[column]!r:.160}")
        return {column: row[column] for column in as_json}

    return dataset.map(plain, with_indices=True, features=features) if as_json else dataset


def _is_plain(feature: object, first: object) -> bool:
    """Return whether a column holds token ids or messages of nothing but a known role and a text."""
    item = getattr(feature, "feature", None)
    if not isinstance(item, dict):
        return hasattr(item, "dtype")
    is_text = all(getattr(item.get(key), "dtype", None) == "string" for key in ("role", "content"))
    return set(item) == {"role", "content"} and is_text and read_conversation(first) == first


def _first_values(table: Dataset | RowTable, columns: Sequence[str]) -> Row:
    """Return the first value that is not null of each of `columns` that the table has."""
    return {
        column: next((value for value in values_of(table, column) if value is not None), None)
        for column in columns
        if column in table.column_names
    }
