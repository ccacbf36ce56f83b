"""Aggregate components into a total, with weights that may follow a schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from rlhf_cli.errors import RewardError, RewardFailed, described
from rlhf_cli.rewards.stack.global_state import kept
from rlhf_cli.rewards.stack.returned_scores import LARGEST

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
        with kept(rewards):
            returned: Iterable[object] = function(rewards=dict(rewards), weights=dict(weights))
            given = [one.item() if hasattr(one, "item") else one for one in returned]  # array items or numpy numbers
    except Exception as error:  # user code: name it and show its traceback
        raise RewardFailed(
            "the aggregate failed",
            where="aggregate",
            got=described(error),
            advice="an entry is None where the reward does not apply to the row" if has_none else None,
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


@dataclass(frozen=True)
class Schedule:
    """A ramp from `start` to `end` over `steps` optimizer steps, or over a `fraction` of training; then constant.

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


Weight = float | Schedule
"""Never normalised: changing one weight leaves the others unchanged."""


def weight_at(weight: Weight, step: int, max_steps: int) -> float:
    """Return `weight` itself, or the schedule's value at that step."""
    return weight.at(step, max_steps) if isinstance(weight, Schedule) else weight


class _Rules(Protocol):
    """The rules of a reward, as a component of the stack or as a section of the configuration."""

    @property
    def weight(self) -> object:
        """Return a number, or a ramp with `start` and `end`."""

    @property
    def normalize(self) -> str:
        """Return what the score is divided by."""


def counting(rewards: Mapping[str, _Rules], environments: Sequence[str] = ()) -> list[str]:
    """Return the names of the rewards that can change a total: those whose weight is not 0 at every step.

    The others only watch: they are logged and read by gates. If all are like that, return all names. `environments`
    names the rewards of environments, whose weight is always 1.
    """
    weights = {
        name: (getattr(one.weight, "start", one.weight), getattr(one.weight, "end", 0)) for name, one in rewards.items()
    }
    return [*(name for name, ends in weights.items() if any(ends)), *environments] or list(rewards)


_DIVISORS = {
    "group": "the deviation of a group in training",
    "batch": "the deviation of a batch in training",
    "running": "the deviation of all that training has scored",
}
"""The divisor that each value of `normalize` needs; other values of `normalize` need no other rows."""


def relative_rewards(normalize: Mapping[str, str], known: Collection[str] = ()) -> list[str]:
    """Return the names of rewards whose value depends on other rows.

    normalize: name -> the reward's `normalize`. known: the names whose running deviation is known.
    """
    return [name for name, how in normalize.items() if how in _DIVISORS and not (how == "running" and name in known)]


def why_no_total(rewards: Mapping[str, _Rules], aggregate: object, known: Collection[str] = ()) -> str | None:
    """Return why a row has no total of its own, or None if it has one. `known` as for `relative_rewards`."""
    normalize = {name: rewards[name].normalize for name in counting(rewards)}
    for name in relative_rewards(normalize, known):
        return f"rewards.{name}.normalize={normalize[name]} divides by {_DIVISORS[normalize[name]]}"
    if aggregate == "normalize_then_sum":
        return "aggregate=normalize_then_sum sums z-scores within a group in training"
    return None
