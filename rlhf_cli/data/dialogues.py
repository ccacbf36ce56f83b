"""Read conversations as people store them, and return them as chat templates read them: a list of {role, content}.

Read are ShareGPT's turns ({from, value}), a single message, JSON text, content in parts of text, and tool calls whose
arguments are JSON text. Arrow gives every message the keys of all messages: keys without a value are left out.
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
ANSWERS = ("completion", "chosen", "rejected", "reference")
_TURNS = (*DIALOGUES, "prompt", *ANSWERS)
_SETTINGS = ("tools", "chat_template_kwargs")
_CALLS = ("function_call", "function-call", "tool_call")
SPEAKERS = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bing", "bard", "model", "bot", *_CALLS), "assistant"),
    **dict.fromkeys(("tool", "observation", "function", "function_response", "tool_response"), "tool"),
    "system": "system",
}
"""ShareGPT's `from` -> OpenAI's role."""


def read_conversation(value: object) -> object:
    """Return a value as a list of messages; anything that is not a conversation is returned unchanged.

    Raise ValueError for an unknown ShareGPT speaker and for a tool call that is not JSON.
    """
    turns = [value] if _has_speaker(value) else value
    is_chat = isinstance(turns, list) and turns and all(isinstance(turn, Mapping) for turn in turns)
    return [_message(turn) for turn in turns] if is_chat and isinstance(turns, list) else value


def _message(turn: Mapping[str, object]) -> Row:
    message = {key: value for key, value in turn.items() if value is not None and value != []}
    sender = message.pop("from", None)
    if sender is not None and "role" not in message:
        if str(sender).lower() not in SPEAKERS:
            raise ValueError(f"an unknown speaker, 'from': {sender!r}; known are {', '.join(SPEAKERS)}")
        content = message.pop("value", message.pop("content", None))
        called = {"content": "", "tool_calls": content} if sender in _CALLS else {"content": content}
        message = {"role": SPEAKERS[str(sender).lower()], **called, **message}
    elif message.get("role") in ("human", "gpt", "function"):
        message["role"] = SPEAKERS[str(message["role"])]
    if "function_call" in message:  # OpenAI's earlier form
        message["tool_calls"] = [message.pop("function_call")]
    if (calls := message.get("tool_calls")) is not None:
        calls = _parsed(calls) if isinstance(calls, str) else calls
        message["tool_calls"] = [_call(call) for call in (calls if isinstance(calls, list) else [calls])]
    message["content"] = _joined(message.get("content", "" if "tool_calls" in message else None))
    return message


def _call(call: object) -> Row:
    """Return a tool call whose arguments are an object; OpenAI writes them as JSON text."""
    bare = without_nulls(call)
    whole = {"type": "function", "function": bare} if isinstance(bare, dict) and "name" in bare else bare
    function = whole.get("function") if isinstance(whole, dict) else None
    if not isinstance(whole, dict) or not isinstance(function, dict):
        raise ValueError(f"a tool call without a function: {call!r:.60}")
    given = function.get("arguments", {})
    function["arguments"] = _parsed(given or "{}") if isinstance(given, str) else given
    if not isinstance(function["arguments"], dict):
        raise ValueError(f"arguments of a tool call that are no object: {given!r:.60}")
    return whole


def _joined(content: object) -> object:
    """Return the text of content in parts; unchanged if a part is no text."""
    parts = without_nulls(content)
    if not isinstance(parts, list):
        return content
    texts = [part.get("text", part.get("value")) if isinstance(part, dict) else part for part in parts]
    is_text = all(not isinstance(part, dict) or part.get("type", "text") == "text" for part in parts)
    return "".join(map(str, texts)) if is_text and all(isinstance(text, str) for text in texts) else parts


def without_nulls(value: object) -> object:
    """Return `value` without the keys of its objects whose value is null."""
    if isinstance(value, Mapping):
        return {key: without_nulls(one) for key, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


def _parsed(text: str) -> object:
    """Return the value of a JSON text, or of Python's notation of it, which pandas writes into a CSV."""
    for read in (json.loads, ast.literal_eval):
        try:
            value: object = read(text)
            return value
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            pass
    raise ValueError(f"text that is no JSON: {text!r:.60}")


def _is_json(value: object) -> bool:
    """Return whether a text is a JSON list of messages."""
    try:
        parsed = _parsed(value) if isinstance(value, str) and value.lstrip().startswith("[") else None
    except ValueError:
        return False
    return isinstance(parsed, list) and bool(parsed) and all(map(_has_speaker, parsed))


def _has_speaker(turn: object) -> bool:
    return isinstance(turn, Mapping) and bool({"role", "from"} & set(turn))


def _read(row: Mapping[str, object], index: int, columns: Mapping[str, bool], name: str) -> Row:
    """Return the columns of a row as messages or settings; `columns` says whether a text there is JSON."""
    read: Row = {}
    for column, is_json in columns.items():
        value = row.get(column)
        try:
            if is_json and isinstance(value, str):
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


def _to_read(table: Dataset | RowTable, columns: Sequence[str]) -> tuple[dict[str, bool], Row]:
    """Return the columns of conversations and settings, with whether a text there is JSON, and their first values."""
    known = [column for column in columns if column in table.column_names and column in (*_TURNS, *_SETTINGS)]
    first = {column: next((one for one in values_of(table, column) if one is not None), None) for column in known}
    texts = [column for column in known if column not in (*DIALOGUES, *_SETTINGS) and isinstance(first[column], str)]
    as_json = {*DIALOGUES, *_SETTINGS, *(texts if all(_is_json(first[column]) for column in texts) else ())}
    return {one: one in as_json for one in known if one in as_json or isinstance(first[one], list | Mapping)}, first


def read_row_conversations(rows: Sequence[Row], columns: Sequence[str], *, name: str = "data") -> list[Row]:
    """Return the rows with the conversations in `columns` as messages. Raise DataError that names the row."""
    read, _ = _to_read(RowTable(rows, sorted({key for row in rows for key in row})), columns)
    return [row | _read(row, number, read, name) for number, row in enumerate(rows)] if read else list(rows)


def read_conversations(dataset: Dataset, columns: Sequence[str], *, is_alone: bool, name: str = "data") -> Dataset:
    """Return the dataset with the conversations in `columns` as messages, unchanged if they are already.

    They are stored as JSON, in which a message has only its own keys. Raise DataError that names the row.
    """
    import datasets

    read, first = _to_read(dataset, columns)
    if is_alone:  # the sources of a mixture have the same types
        read = {one: is_json for one, is_json in read.items() if not _is_plain(dataset.features[one], first[one])}
    if not read:
        return dataset
    stored = {one: datasets.Json() if one in _SETTINGS else datasets.List(datasets.Json()) for one in read}
    features = datasets.Features(**{**dataset.features, **stored})
    arguments = {"columns": read, "name": name}
    mapped: Dataset = dataset.map(_read, with_indices=True, fn_kwargs=arguments, features=features)
    return mapped


def plain_messages(dataset: Dataset) -> Dataset:
    """Return the dataset with messages of a role and a text, in whose place ORPO and CPO can write text."""
    import datasets

    plain = datasets.List({"role": datasets.Value("string"), "content": datasets.Value("string")})
    stored = {one: plain for one in _TURNS if dataset.features.get(one) == datasets.List(datasets.Json())}
    features = datasets.Features(**{**dataset.features, **stored})
    return dataset.map(lambda row: {one: row[one] for one in stored}, features=features) if stored else dataset


def _is_plain(feature: object, first: object) -> bool:
    """Return whether a column holds token ids or messages of nothing but a known role and a text."""
    item = getattr(feature, "feature", None)
    if not isinstance(item, dict):
        return hasattr(item, "dtype")
    is_text = all(getattr(item.get(key), "dtype", None) == "string" for key in ("role", "content"))
    return set(item) == {"role", "content"} and is_text and read_conversation(first) == first
