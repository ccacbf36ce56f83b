"""Fill a rubric: text with `{prompt}`, `{completion}` and dataset columns, parsed by `template_grammar`."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_cli.errors import RewardError
from rlhf_cli.template_grammar import is_text, parse

_GIVEN = ("prompt", "completion")


class Rubric:
    """A parsed rubric.

    Raises RewardError for a malformed text, and for one without `{completion}`.
    """

    def __init__(self, text: str) -> None:
        # Its columns become parameters of the reward, so their names must be identifiers.
        self._template = parse(text, where="args.rubric", error=RewardError, only_identifiers=True)
        if "completion" not in self._template.columns:
            raise RewardError(
                "the rubric does not show the judge the completion",
                where="args.rubric",
                got=text[:200],
                expected="a text with {completion} in it",
            )
        self.columns = [name for name in self._template.columns if name not in _GIVEN]

    def fill(self, values: Mapping[str, object], row: int) -> str | None:
        """Return the text for one row, or None if one of its columns is null.

        Raises RewardError for a missing column or one that is neither text nor a number; `row` is its index, for the
        message.
        """
        for name in self._template.columns:
            if name not in values:
                raise RewardError(
                    f"no column {name!r} in the data",
                    where="args.rubric",
                    expected=f"one of {', '.join(values)}",
                )
            if values[name] is None:
                return None
            if not is_text(values[name]):
                raise RewardError(
                    f"the column {name!r} cannot be put into a rubric",
                    where=f"args.rubric, row {row}",
                    got=f"a {type(values[name]).__name__}",
                    expected="text or a number",
                )
        return self._template.fill(values)
