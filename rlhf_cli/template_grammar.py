"""Parses text with `{column}` fields in it, in which prompt templates and judges' rubrics are written.

Fields are plain names: no attribute, index, conversion or format specification. A template comes out of a config file
that may be somebody else's, and `{row.__class__}` has no business there. `{{` and `}}` are literal braces. What is
filled in is not looked at again, so braces in a value stay what they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter

from rlhf_cli.errors import Prose, UserError


@dataclass(frozen=True)
class ParsedTemplate:
    """A template that was cut into literal texts, each with the column that comes after it, None where none does."""

    pieces: tuple[tuple[str, str | None], ...]

    @property
    def columns(self) -> list[str]:
        """Return the columns that the template reads, each once, in its order."""
        return list(dict.fromkeys(column for _, column in self.pieces if column is not None))

    def fill(self, values: Mapping[str, object]) -> str:
        """Return the text with `values` in it. The caller has seen to it that they are there and are text."""
        # Joined by hand: str.format would look at braces, attributes and formats once more.
        return "".join(literal + ("" if column is None else str(values[column])) for literal, column in self.pieces)


def parse(text: str, *, where: str, error: type[UserError], only_identifiers: bool = False) -> ParsedTemplate:
    """Take a template apart. Raises `error`, naming the config key `where`, for what is malformed or no plain field.

    With `only_identifiers` a column whose name has a space in it, for example, is no plain field either.
    """
    try:
        pieces = list(Formatter().parse(text))
    except (ValueError, TypeError) as problem:
        raise error(
            f"malformed template: {problem}",
            where=where,
            got=str(text)[:200],
            hint=Prose("a literal brace is written twice: {{ and }}"),
        ) from None
    for _, column, spec, conversion in pieces:
        if column is None:
            continue
        is_plain = column.isidentifier() if only_identifiers else column and not any(sign in column for sign in ".[]{}")
        if spec or conversion or not is_plain:
            raise error(
                "a template field is a plain column name",
                where=where,
                got=f"{{{column}{'!' + conversion if conversion else ''}{':' + spec if spec else ''}}}",
                expected="{column}, without attribute, index, conversion or format",
                hint=Prose(
                    "write literal braces twice, {{ }}; give a column with such a name another one with `rename`"
                ),
            )
    return ParsedTemplate(tuple((literal, column) for literal, column, _, _ in pieces))


def is_text(value: object) -> bool:
    """Return whether a value can be put into a template as it is: text or a number."""
    return isinstance(value, str | int | float)
