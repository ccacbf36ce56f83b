"""Settle rows that are not a training batch: each with its own total, if it has one.

`rlhf score`, `rlhf audit`, `rlhf eval` and the evaluations during a training all settle here, by the rules of training
(`reward_matrix.py`) for independent rows; without torch, `rlhf score` starts seconds earlier. A group's or batch's
deviation and z-scores are not available. The running deviation is, if the training's state is. The deviation of the
evaluated rows is no substitute: a row's total would depend on the other rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_cli.rewards.stack.aggregating import Aggregate, aggregated, counting, relative_rewards, why_no_total
from rlhf_cli.rewards.stack.component import Component
from rlhf_cli.text.json_values import finite_or_none

if TYPE_CHECKING:
    from rlhf_cli.numerics.reward_columns import RunningDeviation
    from rlhf_cli.rewards.stack.token_offsets import ScoredPart


@dataclass(frozen=True, slots=True)
class ScoredReward:
    """One reward of one row: as scored, after its rules, and times its weight; None if there is none.

    `open`: no gate was closed. `error`: why it failed. `parts`: what a dense reward scored separately, None if the
    score is for the whole completion.
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
    """One row's rewards (name -> reward) and their aggregated total.

    The total is None if no reward applies to the row, if the aggregate returned none, or if no row has a total.
    """

    total: float | None
    rewards: Mapping[str, ScoredReward]

    def as_json(self) -> dict[str, object]:
        """Return a JSON object."""
        return {"total": self.total, "rewards": {name: one.as_json() for name, one in self.rewards.items()}}


@dataclass(frozen=True)
class RewardSummary:
    """Summary of one reward over all rows. A mean is None if no row was scored.

    `open_fraction` is the share of rows with an open gate, in [0, 1]. The other fields count rows; `calls` counts those
    passed to the function.
    """

    mean: float | None
    effective_mean: float | None
    weighted_mean: float | None
    open_fraction: float
    excluded: int
    errors: int
    calls: int


@dataclass(frozen=True)
class CompletionScores:
    """The rows in order, and a summary by reward (empty if it is not needed).

    `no_total` says why no row has its own total, or is None if they do.
    """

    rows: list[ScoredRow]
    summary: Mapping[str, RewardSummary] = field(default_factory=dict)
    no_total: str | None = None

    def as_json(self) -> dict[str, object]:
        """Return the object that `rlhf score --json` prints, without its rows. `no_total` is left out if it is None."""
        content: dict[str, object] = {"summary": {name: asdict(one) for name, one in self.summary.items()}}
        return content if self.no_total is None else {**content, "no_total": self.no_total}


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
) -> CompletionScores:
    """Return each row's total and its raw, effective and weighted rewards, without a summary.

    raw, fixed: as in the stack's outcomes. running: the training's known deviations by reward name. An excluded reward
    adds 0 to a row's total. A reward whose divisor is not available has no effective value unless it is fixed. No row
    has a total then, since totals would cover different rewards.
    """
    rules = {component.name: component for component in components}
    normalize = {name: component.normalize for name, component in rules.items()}
    counted = counting(rules)
    no_total = why_no_total(rules, aggregate, running)
    relative = relative_rewards(normalize, running)
    effective = [
        [
            fixed_score
            if fixed_score is not None or score is None or component.name in relative
            else _effective(component, score, running)
            for component, score, fixed_score in zip(components, scores, fixed_scores, strict=True)
        ]
        for scores, fixed_scores in zip(raw, fixed, strict=True)
    ]
    totals: list[float | None] = [None] * len(raw)
    # The user's function does not see rows to which no reward with a weight applies; they have no total.
    places = [place for place, name in enumerate(rules) if name in counted]
    given = [row for row, values in enumerate(effective) if any(values[place] is not None for place in places)]
    if no_total is None and given and callable(aggregate):
        rewards = {name: [effective[row][index] for row in given] for index, name in enumerate(normalize)}
        summed = aggregated(aggregate, rewards, dict(zip(normalize, weights, strict=True)))
        for row, total in zip(given, summed, strict=True):
            totals[row] = total
    elif no_total is None:
        for row in given:
            values = zip(effective[row], weights, strict=True)
            totals[row] = sum(value * weight for value, weight in values if value is not None)
    rows = [
        ScoredRow(
            total=finite_or_none(totals[row]),
            rewards={
                name: ScoredReward(
                    raw=raw[row][index],
                    effective=finite_or_none(value),
                    weighted=None if value is None else finite_or_none(value * weights[index]),
                )
                for index, (name, value) in enumerate(zip(normalize, effective[row], strict=True))
            },
        )
        for row in range(len(raw))
    ]
    return CompletionScores(rows, no_total=no_total)


def _effective(component: Component, raw: float, running: Mapping[str, RunningDeviation]) -> float:
    """Return a score after offset, clip and divisor."""
    value = raw - component.offset
    if component.clip is not None:
        low, high = component.clip
        value = min(max(value, low), high)
    return value / running[component.name].divisor if component.normalize == "running" else value


_FILE = "reward_state.json"


def write_running(folder: Path, running: Mapping[str, RunningDeviation]) -> None:
    """Write the deviations by reward into a checkpoint's folder."""
    state = {name: asdict(deviation) for name, deviation in running.items()}
    (folder / _FILE).write_text(json.dumps({"running": state}), encoding="utf-8")


def read_running(folder: Path) -> dict[str, RunningDeviation] | None:
    """Return the deviations by reward from a checkpoint's folder, None if it has no such file."""
    file = folder / _FILE
    if not file.is_file():
        return None
    from rlhf_cli.numerics.reward_columns import RunningDeviation  # imports torch

    state = json.loads(file.read_text(encoding="utf-8"))["running"]
    return {name: RunningDeviation(**deviation) for name, deviation in state.items()}
