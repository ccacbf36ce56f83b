"""Settle rows that are not a training batch: each with its own total, if it has one.

`rlhf score`, `rlhf audit`, `rlhf eval` and the evaluations during a training all settle here. Training scales scores by
the same function (`reward_matrix.py`). Independent rows have no deviation or z-scores of a group or batch, and those of
the evaluated rows are no substitute: a row's total would depend on the other rows. The training's running deviation is
used if its state is available. Without torch, `rlhf score` starts seconds earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import numpy

from rlhf_cli.numerics.score_scaling import Array, RunningDeviation, divisors
from rlhf_cli.rewards.stack.aggregating import Aggregate, aggregated, counting, why_no_total
from rlhf_cli.rewards.stack.component import Component
from rlhf_cli.text.json_values import finite_or_none

if TYPE_CHECKING:
    from rlhf_cli.rewards.stack.token_offsets import ScoredPart


@dataclass(frozen=True, slots=True)
class ScoredReward:
    """One reward of one row: as scored, after its rules, and times its weight; None if there is none.

    `open`: no gate was closed. `error`: why it failed. `parts`: what a dense reward scored separately.
    """

    raw: float | None
    effective: float | None
    weighted: float | None
    open: bool = True
    error: str | None = None
    parts: list[ScoredPart] | None = None

    def as_json(self) -> dict[str, object]:
        """Return a JSON object; `parts` is left out if it is None. `asdict` would take most of a large table's time."""
        content: dict[str, object] = {"raw": self.raw, "effective": self.effective, "weighted": self.weighted}
        content |= {"open": self.open, "error": self.error}
        return content if self.parts is None else {**content, "parts": [part.as_json() for part in self.parts]}


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """One row's rewards (name -> reward), and their aggregated total if it has one."""

    total: float | None
    rewards: Mapping[str, ScoredReward]

    def as_json(self) -> dict[str, object]:
        """Return a JSON object."""
        return {"total": self.total, "rewards": {name: reward.as_json() for name, reward in self.rewards.items()}}


@dataclass(frozen=True)
class RewardSummary:
    """Summary of one reward over all rows: means (None if no row was scored), share of open gates, counts of rows."""

    mean: float | None
    effective_mean: float | None
    weighted_mean: float | None
    open_fraction: float
    excluded: int
    errors: int
    calls: int


@dataclass(frozen=True)
class CompletionScores:
    """The rows in order, a summary by reward (empty if it is not needed), and why no row has its own total."""

    rows: list[ScoredRow]
    summary: Mapping[str, RewardSummary] = field(default_factory=dict)
    no_total: str | None = None

    def as_json(self) -> dict[str, object]:
        """Return the object that `rlhf score --json` prints, without its rows. `no_total` is left out if it is None."""
        content: dict[str, object] = {"summary": {name: asdict(summary) for name, summary in self.summary.items()}}
        return content if self.no_total is None else {**content, "no_total": self.no_total}


Scores = Sequence[Sequence[float | None]]
"""One list per row with one entry per component."""
Details = Callable[[int, str], tuple[bool, str | None, "list[ScoredPart] | None"]]


def scaled_scores(
    raw: Array,
    fixed: Array,
    components: Sequence[Component],
    running: Mapping[str, RunningDeviation],
    *,
    num_generations: int | None = None,
    is_training: bool = False,
) -> tuple[Array, Array, dict[str, RunningDeviation]]:
    """Return (N, K) scores after offset, clip and divisor, the (N, K) divisors, and the running deviations.

    raw, fixed: (N, K), NaN for no score; `fixed` replaces a scaled score. Only training updates `running`. Without
    `num_generations` the rows are independent: a score whose divisor depends on other rows is NaN.
    """
    scaled, dividing, deviations = raw.copy(), numpy.ones_like(fixed), dict(running)
    for index, component in enumerate(components):
        values = raw[:, index] - component.offset
        if component.clip is not None:
            values = values.clip(*component.clip)
        state = running.get(component.name)
        if component.normalize == "running" and num_generations is not None:
            state = state or RunningDeviation()
            if is_training:
                state = deviations[component.name] = state.updated(values)
        dividing[:, index] = divisors(values, component.normalize, num_generations, state)
        scaled[:, index] = values / dividing[:, index]
    return numpy.where(numpy.isnan(fixed), scaled, fixed), dividing, deviations


def settled_rows(
    components: Sequence[Component],
    raw: Scores,
    fixed: Scores,
    weights: Sequence[float],
    *,
    aggregate: Aggregate,
    running: Mapping[str, RunningDeviation],
    details: Details = lambda row, name: (True, None, None),
) -> CompletionScores:
    """Return each row's total and its raw, effective and weighted rewards, without a summary.

    raw, fixed: as in the stack's outcomes. running: the training's known deviations by reward name. details: the
    `open`, `error` and `parts` of a row's reward. An excluded reward adds 0 to a row's total. A reward whose divisor is
    not available has no effective value unless it is fixed, and no row has a total: totals would not compare.
    """
    rules = {component.name: component for component in components}
    shape = (len(raw), len(rules))
    scores, numbers = (numpy.array(matrix, dtype=numpy.float64).reshape(shape) for matrix in (raw, fixed))
    effective, _, _ = scaled_scores(scores, numbers, components, running)
    weighted = effective * numpy.array(weights)
    totals = numpy.full(len(raw), numpy.nan)
    counted = counting(rules)
    is_counted = numpy.array([name in counted for name in rules], dtype=bool)
    is_given = ~numpy.isnan(effective[:, is_counted]).all(axis=1)
    no_total = why_no_total(rules, aggregate, running)
    if no_total is None and callable(aggregate):
        totals[is_given] = aggregated(aggregate, list(rules), effective[is_given], weights)
    elif no_total is None:
        totals[is_given] = sum(numpy.where(numpy.isnan(weighted), 0.0, weighted)[is_given].T)
    rows = []
    columns = zip(totals.tolist(), raw, effective.tolist(), weighted.tolist(), strict=True)
    for row, (total, *scored) in enumerate(columns):
        rewards = {}
        for name, score, value, product in zip(rules, *scored, strict=True):
            rewards[name] = ScoredReward(score, finite_or_none(value), finite_or_none(product), *details(row, name))
        rows.append(ScoredRow(finite_or_none(total), rewards))
    return CompletionScores(rows, no_total=no_total)
