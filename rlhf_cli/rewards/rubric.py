"""A rubric: text with `{prompt}`, `{completion}` and dataset columns in it.

Plain names only, no attribute, index, conversion or format: a rubric may be somebody else's. What is filled in is not
looked at again, so braces in a completion stay what they are. `{{` and `}}` are literal braces.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Formatter

from rlhf_cli.errors import RewardError

_GIVEN = ("prompt", "completion")


class Rubric:
    """Raises RewardError for a text that is malformed, or does not ask for the completion."""

    def __init__(self, text: str) -> None:
        try:
            pieces = list(Formatter().parse(text))
        except (ValueError, TypeError) as error:
            raise RewardError(
                f"malformed rubric: {error}",
                where="args.rubric",
                got=str(text)[:200],
                hint="a literal brace is written twice: {{ and }}",
            ) from None
        for _, name, spec, conversion in pieces:
            if name is not None and (spec or conversion or not name.isidentifier()):
                raise RewardError(
                    "a field of a rubric is a plain column name",
                    where="args.rubric",
                    got=f"{{{name}{'!' + conversion if conversion else ''}{':' + spec if spec else ''}}}",
                    expected="{prompt}, {completion} or {column}, without attribute, index, conversion or format",
                    hint="write literal braces twice, {{ }}",
                )
        self._pieces = [(literal, name) for literal, name, _, _ in pieces]
        names = dict.fromkeys(name for _, name in self._pieces if name is not None)
        if "completion" not in names:
            raise RewardError(
                "the rubric does not show the judge the completion",
                where="args.rubric",
                got=text[:200],
                expected="a text with {completion} in it",
            )
        self.columns = [name for name in names if name not in _GIVEN]

    def fill(self, values: Mapping[str, object], row: int) -> str | None:
        """The text for one row; None where a column it names is null there. Raises RewardError for what is no text."""
        filled: list[str] = []
        for literal, name in self._pieces:
            filled.append(literal)
            if name is None:
                continue
            if name not in values:
                raise RewardError(
                    f"no column {name!r} in the data",
                    where="args.rubric",
                    expected=f"one of {', '.join(values)}",
                )
            value = values[name]
            if value is None:
                return None
            if not isinstance(value, str | int | float):
                raise RewardError(
                    f"the column {name!r} cannot be put into a rubric",
                    where=f"args.rubric, row {row}",
                    got=f"a {type(value).__name__}",
                    expected="text or a number",
                )
            filled.append(str(value))
        return "".join(filled)
