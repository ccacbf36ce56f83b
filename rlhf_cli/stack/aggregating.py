"""Combine a row's components into one total, calling the user's function if there is one. Does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from rlhf_cli.errors import Prose, RewardError, RewardFailed
from rlhf_cli.stack.returned_scores import LARGEST

Aggregate = Literal["sum", "normalize_then_sum"] | Callable[..., Sequence[float | None]]
"""How components become one total. A function gets the effective values by name (None if the reward does not apply to
the row) and the weights by name.
"""


def aggregated(
    function: Callable[..., Sequence[float | None]],
    rewards: Mapping[str, list[float | None]],
    weights: Mapping[str, float],
) -> list[float | None]:
    """Return the totals that the user's function computes, with None for rows it gives no total.

    `rewards` maps each name to one effective value per row, None if the reward does not apply. Raise RewardFailed if
    the function raises, RewardError if it does not return one finite number or None per row.
    """
    num_rows = len(next(iter(rewards.values())))
    has_none = any(None in column for column in rewards.values())
    try:
        returned: Iterable[object] = function(rewards=dict(rewards), weights=dict(weights))
        given = [one.item() if hasattr(one, "item") else one for one in returned]  # array items or numpy numbers
    except Exception as error:  # user code: name it and show its traceback
        raise RewardFailed(
            "the aggregate failed",
            where="aggregate",
            got=f"{type(error).__name__}: {error}",
            hint=Prose("an entry is None where the reward does not apply to the row") if has_none else None,
        ) from error
    totals: list[float | None] = []
    wrong = []
    for total in given:
        if total is None or (isinstance(total, int | float) and abs(total) <= LARGEST):
            totals.append(total)
        else:
            wrong.append(total)
    if len(given) != num_rows or wrong:
        raise RewardError(
            "the aggregate returned no total a row",
            where="aggregate",
            got=f"{wrong[0]!r}" if wrong else f"{len(given)} totals for {num_rows} rows",
            expected="one finite number a row, None where no total can be given",
        )
    return totals
