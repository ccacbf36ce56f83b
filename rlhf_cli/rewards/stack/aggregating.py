"""Aggregate components into a total, with weights that may follow a schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from rlhf_cli.errors import RewardError, RewardFailed, described
from rlhf_cli.process import kept
from rlhf_cli.rewards.stack.returned_scores import LARGEST
from rlhf_cli.text.json_values import finite_or_none

if TYPE_CHECKING:
    from rlhf_cli.numerics.score_scaling import Array

Aggregate = Literal["sum", "normalize_then_sum"] | Callable[..., Sequence[float | None]]
"""How components become one total. A function gets two dicts by reward: values (None: does not apply) and weights."""


def aggregated(
    function: Callable[..., Sequence[float | None]], names: Sequence[str], effective: Array, weights: Sequence[float]
) -> Array:
    """Return the (N,) totals that the user's function computes, NaN for rows it gives no total.

    `effective`: (N, K), NaN if a reward does not apply. Raise RewardFailed if the function raises, RewardError if it
    does not return one finite number or None per row.
    """
    import numpy  # not needed to check a configuration

    num_rows = len(effective)
    if not num_rows:
        return numpy.empty(0)
    columns = zip(names, effective.T.tolist(), strict=True)
    rewards = {name: list(map(finite_or_none, column)) for name, column in columns}
    has_none = any(None in column for column in rewards.values())
    try:
        with kept(rewards):
            named = dict(zip(names, weights, strict=True))
            returned: Iterable[object] = function(rewards=dict(rewards), weights=named)
            given = [total.item() if hasattr(total, "item") else total for total in returned]  # as of an array
    except Exception as error:  # user code: name it and show its traceback
        advice = "an entry is None if the reward does not apply to the row" if has_none else None
        raise RewardFailed("the aggregate failed", where="aggregate", got=described(error), advice=advice) from error
    numbers = [total for total in given if total is not None]
    wrong = [total for total in numbers if not isinstance(total, int | float) or not abs(total) <= LARGEST]
    if len(given) != num_rows or wrong:
        what, expected = "the aggregate did not return a total for each row", "one finite number or None per row"
        got = f"{wrong[0]!r}" if wrong else f"{len(given)} totals for {num_rows} rows"
        raise RewardError(what, where="aggregate", got=got, expected=expected)
    return numpy.array([numpy.nan if total is None else total for total in given], dtype=numpy.float64)


@dataclass(frozen=True)
class Schedule:
    """A ramp from `start` to `end` over `steps` optimizer steps, a `fraction` of training, or all of it; then constant.

    linear: start + (end - start) p. cosine: start + (end - start)(1 - cos(pi p)) / 2. step: `start` until p = 1, then
    `end`. p is the completed share of the ramp, 0 at the first step.
    """

    start: float
    end: float
    steps: int | None = None
    fraction: float | None = None
    shape: Literal["linear", "cosine", "step"] = "linear"

    def at(self, step: int, max_steps: int) -> float:
        """Return the weight for optimizer step `step` (counted from 0) of `max_steps`."""
        length = self.steps if self.steps is not None else (self.fraction or 1.0) * max_steps
        passed = min(step / length, 1.0) if length > 0 else 1.0
        if self.shape == "step":
            passed = float(passed >= 1.0)
        elif self.shape == "cosine":
            passed = (1 - math.cos(math.pi * passed)) / 2
        return self.start + (self.end - self.start) * passed


class _Rules(Protocol):
    """The rules of a reward, a component or a section of the configuration. A `weight` is a number or a ramp."""

    @property
    def weight(self) -> object: ...

    @property
    def normalize(self) -> str: ...


def counting(rewards: Mapping[str, _Rules], environments: Sequence[str] = ()) -> list[str]:
    """Return the names of the rewards that can change a total, whose weight is not 0 at every step; all if none can.

    The others only watch: they are logged and read by gates. The rewards of `environments` have the weight 1.
    """
    weights = {name: reward.weight for name, reward in rewards.items()}
    ends = {name: (getattr(weight, "start", weight), getattr(weight, "end", 0)) for name, weight in weights.items()}
    return [*(name for name in weights if any(ends[name])), *environments] or list(rewards)


_DIVISORS = {
    "group": "the deviation of a group in training",
    "batch": "the deviation of a batch in training",
    "running": "the deviation of all that training has scored",
}
"""The divisor that each value of `normalize` needs; other values of `normalize` need no other rows."""


def why_no_total(rewards: Mapping[str, _Rules], aggregate: object, known: Collection[str] = ()) -> str | None:
    """Return why a row has no total of its own, or None if it has one. `known`: rewards with a running deviation."""
    for name in counting(rewards):
        normalize = rewards[name].normalize
        if normalize in _DIVISORS and not (normalize == "running" and name in known):
            return f"rewards.{name}.normalize={normalize} divides by {_DIVISORS[normalize]}"
    if aggregate == "normalize_then_sum":
        return "aggregate=normalize_then_sum sums z-scores within a group in training"
    return None
