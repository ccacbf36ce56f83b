"""Compute the margin of each preference pair, from a column or from two scores.

Llama 2 (arXiv 2307.09288, 3.2.2) puts it into the loss, -log sigmoid(r_chosen - r_rejected - margin), so that the
scores of a clearly better answer are pushed further apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlhf_cli.data.row_table import Table
from rlhf_cli.data.rows import numbered, values_of
from rlhf_cli.data.template import missing_column
from rlhf_cli.errors import DataError, Prose

_SHOWN = 3


@dataclass(frozen=True)
class MarginRule:
    """The source of margins: a `column`, or the score columns `chosen` and `rejected`.

    The margin of two scores is `scale * transform(chosen - rejected)`. `drops`: drop pairs without a valid margin
    instead of raising an error. Unused fields are None.
    """

    column: str | None = None
    chosen: str | None = None
    rejected: str | None = None
    scale: float = 1.0
    transform: Literal["identity", "log1p", "rank"] = "identity"
    drops: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns that the rule reads."""
        return tuple(column for column in (self.column, self.chosen, self.rejected) if column is not None)


def distances(dataset: Table, rule: MarginRule, *, name: str = "data") -> tuple[list[float], dict[int, str]]:
    """Return `(distances, row index -> problem)`; an invalid distance is NaN.

    A distance is the value of `column`, or the chosen score minus the rejected one. Raise DataError if a column is
    missing.
    """
    for column in rule.columns:
        if column not in dataset.column_names:
            raise missing_column(column, dataset.column_names, f"reward_model.margin, on {name}")
    all_distances: list[float] = []
    wrong: dict[int, str] = {}
    read = [values_of(dataset, column) for column in rule.columns]
    for index, values in enumerate(zip(*read, strict=True)):
        complaint = next((_complaint(value) for value in values if _complaint(value) is not None), None)
        distance = math.nan
        if complaint is None:
            numbers = [float(value) for value in values]
            distance = numbers[0] if len(numbers) == 1 else numbers[0] - numbers[1]
            if distance < 0:
                of = "" if len(numbers) == 1 else f", {values[0]} less {values[1]}"
                complaint = f"{distance:g}, below 0{of}"
        if complaint is not None:
            wrong[index], distance = complaint, math.nan
        all_distances.append(distance)
    return all_distances, wrong


def refuse_margins(wrong: dict[int, str], rule: MarginRule, num_rows: int, *, name: str = "data") -> DataError:
    """Return the error for rows without a valid margin: the rows, their values and a hint."""
    rows = sorted(wrong)
    read = " and ".join(rule.columns)
    is_text = "text" in wrong[rows[0]]
    return DataError(
        f"no margin can be had from the column{'s' if len(rule.columns) > 1 else ''} {read} "
        f"for {len(wrong)} of {num_rows} pairs",
        where=f"{name}, {numbered([row + 1 for row in rows])} (the first row is 1)",
        got="\n".join(f"row {row + 1}: {wrong[row]}" for row in rows[:_SHOWN]),
        expected="a finite number of 0 or more"
        if rule.column is not None
        else "two finite numbers, the chosen answer's not the smaller",
        hint=Prose(
            ("numbers are written without quotes; " if is_text else "")
            + "reward_model.margin.on_bad=drop leaves such pairs out and counts them"
        ),
    )


def margins(sound: Sequence[float], rule: MarginRule) -> list[float]:
    """Return the margins of valid `distances`.

    `identity` is the distance d, `log1p` is log(1 + d), and `rank` is the rank of d in ascending order divided by the
    number of distances: in (0, 1], with the mean rank for ties.
    """
    if rule.column is not None:
        return list(sound)
    if rule.transform == "log1p":
        return [rule.scale * math.log1p(distance) for distance in sound]
    if rule.transform == "rank":
        return [rule.scale * share for share in _ranks(sound)]
    return [rule.scale * distance for distance in sound]


def _ranks(values: Sequence[float]) -> list[float]:
    places: dict[float, list[int]] = {}
    for place, value in enumerate(sorted(values), 1):
        places.setdefault(value, []).append(place)
    shares = {value: sum(of) / len(of) / len(values) for value, of in places.items()}
    return [shares[value] for value in values]


def _complaint(value: object) -> str | None:
    """Return the problem with a number, or None."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, str):
        return f"{value!r:.40}, text"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"{value!r:.40}, a {type(value).__name__}"
    return None if math.isfinite(value) else f"{value}, no finite number"
