"""Fill `{column}` fields in prompt templates: text or chat messages, in the syntax of `template_grammar`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from rlhf_cli.errors import DataError, Prose
from rlhf_cli.text.suggest import nearest
from rlhf_cli.text.template_grammar import is_text, parse

Message: TypeAlias = Mapping[str, str]
Template: TypeAlias = str | Sequence[Message]


def render(template: Template, row: Mapping[str, object], *, name: str = "data.prompt") -> str | list[dict[str, str]]:
    """Fill a template from one row: a text gives a plain prompt, messages give a conversational one.

    Raise DataError if a column is missing, null, a list or an object.
    """
    if isinstance(template, str):
        return _fill(template, row, name)
    return [
        {"role": message["role"], "content": _fill(message["content"], row, f"{name}[{position}]")}
        for position, message in enumerate(_checked_messages(template, name))
    ]


def template_columns(template: Template, *, name: str = "data.prompt") -> set[str]:
    """Return the columns that a template reads. Raise DataError if its syntax is invalid."""
    if isinstance(template, str):
        return set(parse(template, where=name, error=DataError).columns)
    contents = [message["content"] for message in _checked_messages(template, name)]
    return {column for content in contents for column in parse(content, where=name, error=DataError).columns}


def missing_column(
    column: str, columns: Sequence[str], name: str, typed: Callable[[str], str] = "{}".format
) -> DataError:
    """Return the error for an unknown column: its name, the config key, the existing columns, a suggestion.

    `typed` turns the suggested column into the command-line argument that names it.
    """
    close = nearest(column, columns)
    return DataError(
        f"no column {column!r} in the data",
        where=name,
        expected=f"one of {', '.join(columns)}",
        hint=typed(close) if close is not None else None,
    )


def refuse_missing_columns(template: Template, columns: Sequence[str]) -> None:
    """Raise DataError if a prompt template reads a missing column."""
    for column in sorted(template_columns(template) - set(columns)):

        def mended(close: str, column: str = column) -> str:
            if not isinstance(template, str) or "'" in template or '"' in template:
                return close
            return f"data.prompt={shlex.quote(template.replace(f'{{{column}}}', f'{{{close}}}'))}"

        raise missing_column(column, columns, "data.prompt", mended)


def _fill(template: str, row: Mapping[str, object], name: str) -> str:
    parsed = parse(template, where=name, error=DataError)
    for column in parsed.columns:
        if column not in row:
            raise missing_column(column, list(row), name)
        value = row[column]
        if not is_text(value):
            raise DataError(
                f"the column {column!r} cannot be put into a prompt",
                where=name,
                got="nothing (null)" if value is None else f"a {type(value).__name__}",
                expected="text or a number",
                hint=Prose("name a text column, or let `rename` make this column the prompt")
                if value is not None
                else None,
            )
    return parsed.fill(row)


def _checked_messages(template: Sequence[Message], name: str) -> Sequence[Message]:
    for position, message in enumerate(template):
        sound = isinstance(message, Mapping) and set(message) == {"role", "content"}
        if not sound or not all(isinstance(part, str) for part in message.values()):
            raise DataError(
                "a message of a template is {role, content}, both text",
                where=f"{name}[{position}]",
                got=dict(message) if isinstance(message, Mapping) else message,
                expected='{role: user, content: "{question}"}',
            )
    if not template:
        raise DataError("a template without messages", where=name)
    return template
