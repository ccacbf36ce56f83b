"""Try a chat template on the first rows, and say at which message it stumbles or which one it leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias, cast

import jinja2

from rlhf_cli.data.dialogues import DIALOGUES
from rlhf_cli.data.rows import Table, kind_of_text
from rlhf_cli.errors import DataError

TEMPLATE_ERRORS = (jinja2.TemplateError, TypeError, ValueError, ArithmeticError)
"""What a chat template may raise on a conversation that it does not take."""
_ROWS = 200
Messages: TypeAlias = Sequence[Mapping[str, object]]
Write: TypeAlias = Callable[[Messages, Mapping[str, object]], str]
"""Takes messages and variables of the template, returns the text."""


def check_rendering(table: Table, columns: Sequence[str], write: Write, *, name: str = "data") -> None:
    """Raise DataError if `write`, the chat template, does not take a conversation of the first rows or leaves part out.

    `columns` are those that the trainer reads.
    """
    for number in range(min(_ROWS, len(table))):
        row = table[number]
        given = row.get("chat_template_kwargs") if "chat_template_kwargs" in columns else None
        tools = {"tools": row.get("tools") or None} if "tools" in columns else {}
        settings = tools | (given if isinstance(given, dict) else {})
        for column, messages, is_asking in _conversations(row, columns):
            where = f"{name}, row {number + 1} (the first row is 1), {column}"
            _check(messages, write, settings | {"add_generation_prompt": is_asking}, where)


def _conversations(row: Mapping[str, object], columns: Sequence[str]) -> Iterator[tuple[str, Messages, bool]]:
    """Yield (column, messages, whether an answer comes next) of the texts that TRL renders."""
    asked = row["prompt"] if "prompt" in columns else []
    answers = [name for name in columns if name in ("completion", "chosen", "rejected", "reference", *DIALOGUES)]
    if isinstance(asked, list) and asked:
        yield "prompt", asked, True
    for name in answers:
        if isinstance(asked, list) and kind_of_text(row[name]) == "messages":
            yield name, [*asked, *cast("Messages", row[name])], False


def _check(messages: Messages, write: Write, settings: Mapping[str, object], where: str) -> None:
    whole = _error(messages, write, settings)
    if whole is None:
        _refuse_left_out(messages, write, settings, where)
        return
    prefixes = ((end, _error(messages[:end], write, settings)) for end in range(1, len(messages)))
    place, error = next(((end, error) for end, error in prefixes if error is not None), (len(messages), whole))
    raise DataError(
        f"the chat template does not take message {place}, by {messages[place - 1].get('role')!r}",
        where=where,
        got=f"{type(error).__name__}: {error}, at {messages[place - 1].get('content')!r:.100}",
        expected="roles and contents that the model's chat template writes",
        hint="model.tokenizer=FOLDER_OR_HUB_ID  # of a model whose template does",
    )


def _error(messages: Messages, write: Write, settings: Mapping[str, object]) -> Exception | None:
    try:
        write(messages, settings)
    except TEMPLATE_ERRORS as error:
        return error
    return None


def _refuse_left_out(messages: Messages, write: Write, settings: Mapping[str, object], where: str) -> None:
    """Raise DataError for a text, a tool call or tools that the template does not write; marks in their places tell."""
    marks: dict[str, tuple[str, object]] = {}

    def marked(what: str, value: object) -> str:
        mark = f"q{len(marks)}mark"
        marks[mark] = (what, value)
        return mark

    changed = []
    for place, message in enumerate(messages, 1):
        content, calls, whose = message.get("content"), message.get("tool_calls"), f"message {place}"
        other = dict(message)
        if isinstance(calls, list):  # a template may write the calls alone
            other["tool_calls"] = [_renamed(call, marked(f"the tool call of {whose}", call)) for call in calls]
        elif isinstance(content, str) and content.strip():
            other["content"] = marked(f"{whose}, by {message.get('role')!r}", content)
        changed.append(other)
    if isinstance(tools := settings.get("tools"), list) and tools:
        settings = dict(settings) | {"tools": [_renamed(tools[0], marked("the column 'tools'", tools[0])), *tools[1:]]}
    try:
        text = write(changed, settings)
    except TEMPLATE_ERRORS:
        return  # it reads the contents
    for mark, (what, value) in marks.items():
        if mark not in text:
            raise DataError(
                f"the chat template leaves out {what}",
                where=where,
                got=f"{value!r:.100}",
                expected="roles, tool calls and tools that the template writes; other columns have other names",
                hint="model.tokenizer=FOLDER_OR_HUB_ID  # of a model whose template writes it",
            )


def _renamed(tool: object, name: str) -> object:
    """Return a tool or a tool call under another name."""
    if not isinstance(tool, Mapping):
        return tool
    if isinstance(function := tool.get("function"), Mapping):
        return {**tool, "function": {**function, "name": name}}
    return {**tool, "name": name}
