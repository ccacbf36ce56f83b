"""Settle rows that are not a training batch: each with its total.

Training settles the rows of a batch together. An evaluation and `rlhf score` have rows that form no such batch, so a
group's or batch's deviation and z-scores within a group are not available. The running deviation is available if the
training's state is. The deviation of the evaluated rows is no substitute: a row's total would depend on the other rows,
and two evaluations would have different units.

`rlhf score`, `rlhf audit`, `rlhf eval` and the evaluations during a training all settle here. The rules are those of
training (`stack/settling.py`), for independent rows; a test with random rewards compares the two. Without torch, `rlhf
score` starts seconds earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from rlhf_cli.rewards.stack.aggregating import Aggregate, aggregated
from rlhf_cli.rewards.stack.component import Component
from rlhf_cli.rewards.stack.scored_rows import SettledReward, SettledRow, SettledRows
from rlhf_cli.text.json_values import finite_or_none

if TYPE_CHECKING:
    from rlhf_cli.numerics.reward_columns import RunningDeviation

_DIVISORS = {
    "group": "the deviation of a group in training",
    "batch": "the deviation of a batch in training",
    "running": "the deviation of all that training has scored",
}
"""The divisor that each value of `normalize` needs; other values of `normalize` need no other rows."""


def relative_rewards(normalize: Mapping[str, str], seen: Collection[str] = ()) -> list[str]:
    """Return the names of rewards whose value depends on other rows.

    normalize: name -> the reward's `normalize`. seen: the names whose running deviation is known.
    """
    return [name for name, how in normalize.items() if how in _DIVISORS and not (how == "running" and name in seen)]


def why_no_total(normalize: Mapping[str, str], aggregate: object, seen: Collection[str] = ()) -> str | None:
    """Return why a row has no total of its own, or None if it has one. Arguments as for `relative_rewards`."""
    relative = relative_rewards(normalize, seen)
    if relative:
        name = relative[0]
        return f"rewards.{name}.normalize={normalize[name]} divides by {_DIVISORS[normalize[name]]}"
    if aggregate == "normalize_then_sum":
        return "aggregate=normalize_then_sum sums z-scores within a group in training"
    return None


Matrix = Sequence[Sequence[float | None]]
"""One list per row with one entry per component."""


def settled_rows(
    components: Sequence[Component],
    raw: Matrix,
    fixed: Matrix,
    weights: Sequence[float],
    *,
    aggregate: Aggregate,
    running: Mapping[str, RunningDeviation],
) -> SettledRows:
    """Return each row's total and its raw, effective and weighted rewards.

    raw, fixed: as in the stack's outcomes. running: the training's known deviations by reward name. An excluded reward
    adds 0 to a row's total. A reward whose divisor is not available (`row_totals.py`) has no effective value unless it
    is fixed. No row has a total then, since totals would cover different rewards.
    """
    normalize = {component.name: component.normalize for component in components}
    no_total = why_no_total(normalize, aggregate, running)
    relative = relative_rewards(normalize, running)
    effective = [
        [
            _effective(component, raw[row][index], fixed[row][index], running, is_relative=component.name in relative)
            for index, component in enumerate(components)
        ]
        for row in range(len(raw))
    ]
    if no_total is not None:
        totals: list[float | None] = [None] * len(raw)
    elif callable(aggregate):
        totals = _by_function(aggregate, effective, list(normalize), weights)
    else:
        totals = [_sum(values, weights) for values in effective]
    rows = [
        SettledRow(
            total=finite_or_none(totals[row]),
            rewards={
                name: SettledReward(
                    raw=raw[row][index],
                    effective=finite_or_none(value),
                    weighted=None if value is None else finite_or_none(value * weights[index]),
                )
                for index, (name, value) in enumerate(zip(normalize, effective[row], strict=True))
            },
        )
        for row in range(len(raw))
    ]
    return SettledRows(rows, no_total)


def _effective(
    component: Component,
    raw: float | None,
    fixed: float | None,
    running: Mapping[str, RunningDeviation],
    *,
    is_relative: bool,
) -> float | None:
    """Return a score after offset, clip and divisor, or the fixed value that replaces it."""
    if fixed is not None:
        return fixed
    if raw is None or is_relative:
        return None
    value = raw - component.offset
    if component.clip is not None:
        low, high = component.clip
        value = min(max(value, low), high)
    return value / running[component.name].divisor if component.normalize == "running" else value


def _sum(values: Sequence[float | None], weights: Sequence[float]) -> float | None:
    applying = [value * weight for value, weight in zip(values, weights, strict=True) if value is not None]
    return sum(applying) if applying else None


def _by_function(
    function: Callable[..., Sequence[float | None]],
    effective: Matrix,
    names: Sequence[str],
    weights: Sequence[float],
) -> list[float | None]:
    """Return the user's totals; the function does not see rows to which no reward applies, and they get None."""
    given = [row for row, values in enumerate(effective) if any(value is not None for value in values)]
    totals: list[float | None] = [None] * len(effective)
    if given:
        rewards = {name: [effective[row][index] for row in given] for index, name in enumerate(names)}
        for row, total in zip(
            given, aggregated(function, rewards, dict(zip(names, weights, strict=True))), strict=True
        ):
            totals[row] = total
    return totals
