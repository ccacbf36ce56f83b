"""Say how the components of a row become one total, and call the user's function where it is one. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from rlhf_cli.errors import RewardError, RewardFailed
from rlhf_cli.stack.returned_scores import LARGEST

Aggregate = Literal["sum", "normalize_then_sum"] | Callable[..., Sequence[float | None]]
"""How the components become one total; a function gets name -> effective values, None where the reward does not apply
to the row, and the weights by name.
"""


def aggregated(
    function: Callable[..., Sequence[float | None]],
    rewards: Mapping[str, list[float | None]],
    weights: Mapping[str, float],
) -> list[float | None]:
    """Return the totals that the user's function makes of the rows' rewards; None where it gave none.

    rewards: name -> one effective value a row, None where the reward does not apply. Raises RewardFailed when the
    function raises, RewardError when it does not return one finite number or None a row.
    """
    num_rows = len(next(iter(rewards.values())))
    has_none = any(None in column for column in rewards.values())
    try:
        returned: Iterable[object] = function(rewards=dict(rewards), weights=dict(weights))
        given = [one.item() if hasattr(one, "item") else one for one in returned]  # of an array, or of numpy's numbers
    except Exception as error:  # the user's code: named, and its traceback shown
        raise RewardFailed(
            "the aggregate failed",
            where="aggregate",
            got=f"{type(error).__name__}: {error}",
            hint="an entry is None where the reward does not apply to the row" if has_none else None,
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
