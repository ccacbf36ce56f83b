"""Parse text with `{column}` fields, the format of prompt templates and judge rubrics.

Fields are plain names without attribute, index, conversion or format specification, because a config file may come from
someone else and must not evaluate `{row.__class__}`. `{{` and `}}` are literal braces. Values that are filled in are
not parsed again, so their braces stay unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter

from rlhf_cli.errors import UserError


@dataclass(frozen=True)
class ParsedTemplate:
    """A template split into literal texts, each with the column that follows it, or None."""

    pieces: tuple[tuple[str, str | None], ...]

    @property
    def columns(self) -> list[str]:
        """Return the columns that the template reads, each once, in order."""
        return list(dict.fromkeys(column for _, column in self.pieces if column is not None))

    def fill(self, values: Mapping[str, object]) -> str:
        """Return the text with `values` filled in. The caller must pass text or numbers for all columns."""
        # str.format would interpret braces, attributes and formats again.
        return "".join(literal + ("" if column is None else str(values[column])) for literal, column in self.pieces)


def parse(text: str, *, where: str, error: type[UserError], only_identifiers: bool = False) -> ParsedTemplate:
    """Parse a template. Raise `error`, with the key `where`, if it is malformed or a field is not a plain column name.

    With `only_identifiers`, a column name must be a Python identifier.
    """
    try:
        pieces = list(Formatter().parse(text))
    except (ValueError, TypeError) as problem:
        advice = "write a literal brace twice: {{ or }}"
        raise error(f"malformed template: {problem}", where=where, got=str(text)[:200], advice=advice) from None
    for _, column, spec, conversion in pieces:
        if column is None:
            continue
        is_plain = column.isidentifier() if only_identifiers else column and not any(sign in column for sign in ".[]{}")
        if spec or conversion or not is_plain:
            got = f"{{{column}{'!' + conversion if conversion else ''}{':' + spec if spec else ''}}}"
            what, expected = "a template field is a plain column name", "{column}, without attribute, index or format"
            advice = "write literal braces twice, {{ }}; rename such a column with `rename`"
            raise error(what, where=where, got=got, expected=expected, advice=advice)
    return ParsedTemplate(tuple((literal, column) for literal, column, _, _ in pieces))


def is_text(value: object) -> bool:
    """Return whether a value is text or a number, which a template can hold as it is."""
    return isinstance(value, str | int | float)
