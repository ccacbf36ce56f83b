"""What a reward function may return, brought to one form: a float or None for every row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rlhf_cli.errors import RewardError

Score = float | None
"""One row's reward; None where the reward does not apply to the row."""


def as_scores(name: str, returned: Any, num_rows: int) -> list[Score]:
    """`returned` as a list of `num_rows` floats or Nones.

    Accepts a list, a tuple, a numpy array or a tensor of numbers. Raises RewardError, naming the reward and the row,
    for anything else: the wrong length, a text, a dict, an infinite number. A bool counts as 0 or 1. NaN means, as
    None does, that the reward does not apply.
    """
    if hasattr(returned, "tolist"):
        returned = returned.tolist()
    if isinstance(returned, str | dict) or not isinstance(returned, Sequence):
        raise RewardError(
            f"reward {name!r} did not return a list",
            where=f"rewards.{name}",
            got=f"{type(returned).__name__}: {returned!r:.80}",
            expected=f"a list of {num_rows} numbers, one a completion; None where the reward does not apply",
        )
    if len(returned) != num_rows:
        raise RewardError(
            f"reward {name!r} returned {len(returned)} values for {num_rows} completions",
            where=f"rewards.{name}",
            got=f"{list(returned)!r:.80}",
            expected=f"a list of {num_rows} numbers, one a completion; None where the reward does not apply",
        )
    return [_as_score(name, row, value) for row, value in enumerate(returned)]


def _as_score(name: str, row: int, value: Any) -> Score:
    if value is None:
        return None
    if hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, int | float):
        problem = f"{type(value).__name__}: {value!r:.80}"
    elif math.isinf(value):
        problem = repr(value)
    else:
        return None if math.isnan(value) else float(value)
    raise RewardError(
        f"reward {name!r} returned no number for row {row}",
        where=f"rewards.{name}",
        got=problem,
        expected="a finite number, or None where the reward does not apply",
    )
