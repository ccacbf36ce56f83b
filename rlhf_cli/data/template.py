"""Prompt templates: text, or chat messages, with `{column}` fields.

Only plain fields: no attribute, index, conversion or format specification. A template comes out of a config file that
may be somebody else's, and `{row.__class__}` has no business there. `{{` and `}}` are literal braces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from string import Formatter
from typing import TypeAlias

from rlhf_cli.errors import DataError
from rlhf_cli.suggest import did_you_mean

Message: TypeAlias = Mapping[str, str]
Template: TypeAlias = str | Sequence[Message]


def render(template: Template, row: Mapping[str, object], *, name: str = "data.prompt") -> str | list[dict[str, str]]:
    """Fill a template from one row: a text gives a plain prompt, messages give a conversational one.

    Raises DataError for a column that the row lacks, or that holds nothing, or a list or an object there.
    """
    if isinstance(template, str):
        return _fill(template, row, name)
    return [
        {"role": message["role"], "content": _fill(message["content"], row, f"{name}[{position}]")}
        for position, message in enumerate(_checked_messages(template, name))
    ]


def template_columns(template: Template, *, name: str = "data.prompt") -> set[str]:
    """The columns a template reads. Raises DataError where it is malformed or wants more than plain fields."""
    if isinstance(template, str):
        return {column for _, column in _pieces(template, name) if column is not None}
    contents = [message["content"] for message in _checked_messages(template, name)]
    return {column for content in contents for _, column in _pieces(content, name) if column is not None}


def missing_column(column: str, columns: Sequence[str], name: str) -> DataError:
    """The error of a name that is no column: which, the config key that wants it, what there is, what is near."""
    return DataError(
        f"no column {column!r} in the data",
        where=name,
        expected=f"one of {', '.join(columns)}",
        hint=did_you_mean(column, columns),
    )


def _fill(template: str, row: Mapping[str, object], name: str) -> str:
    # Joined by hand: str.format would look at braces, attributes and formats once more.
    filled = []
    for literal, column in _pieces(template, name):
        filled.append(literal)
        if column is None:
            continue
        if column not in row:
            raise missing_column(column, list(row), name)
        value = row[column]
        if not isinstance(value, str | int | float):
            got = "nothing (null)" if value is None else f"a {type(value).__name__}"
            raise DataError(
                f"the column {column!r} cannot be put into a prompt",
                where=name,
                got=got,
                expected="text or a number",
                hint=None if value is None else "name a text column, or let `rename` make this column the prompt",
            )
        filled.append(str(value))
    return "".join(filled)


def _pieces(template: str, name: str) -> Iterator[tuple[str, str | None]]:
    """`(literal text, column after it or None)` in order."""
    try:
        pieces = list(Formatter().parse(template))
    except ValueError as error:
        raise DataError(
            f"malformed template: {error}",
            where=name,
            got=template,
            hint="a literal brace is written twice: {{ and }}",
        ) from None
    for literal, column, spec, conversion in pieces:
        if column is not None and (not column or spec or conversion or any(sign in column for sign in ".[]{}")):
            raise DataError(
                "a template field is a plain column name",
                where=name,
                got=f"{{{column}{'!' + conversion if conversion else ''}{':' + spec if spec else ''}}}",
                expected="{column}, without attribute, index, conversion or format",
                hint="write literal braces twice, {{ }}; give a column with such a name another one with `rename`",
            )
        yield literal, column


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
