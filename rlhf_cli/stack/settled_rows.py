"""Settle rows that are no batch of a training: each with its total, and by name what every reward came to.

The one place for them: `rlhf score`, `rlhf eval` and the evaluations during a training all settle here, by the rules
and the aggregate that the training has (`stack/settling.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from rlhf_cli.json_values import finite_or_none
from rlhf_cli.measure.scored_rows import SettledReward, SettledRow, SettledRows
from rlhf_cli.numerics.reward_columns import RunningDeviation
from rlhf_cli.stack.component import Component
from rlhf_cli.stack.row_totals import relative_rewards, why_no_total
from rlhf_cli.stack.settling import Aggregate, settle

Matrix = Sequence[Sequence[float | None]]
"""One list a row with an entry a component."""


def settled_rows(
    components: Sequence[Component],
    raw: Matrix,
    fixed: Matrix,
    weights: Sequence[float],
    *,
    aggregate: Aggregate,
    running: Mapping[str, RunningDeviation],
) -> SettledRows:
    """Return each row's total and by name its raw, effective and weighted reward.

    raw, fixed: as the stack's outcomes hold them. running: the training's deviations by name, as far as they are known.
    An excluded reward adds nothing to a row's total. A reward whose divisor cannot be had (`row_totals.py`) has no
    effective value but where it is fixed, and then no row has a total: rows would have totals of different rewards.
    """
    normalize = {component.name: component.normalize for component in components}
    no_total = why_no_total(normalize, aggregate, running)
    is_relative = torch.tensor([name in relative_rewards(normalize, running) for name in normalize])
    raw_scores, fixed_scores = (_matrix(rows, len(components)) for rows in (raw, fixed))
    by_now = torch.tensor(weights, dtype=torch.float64)
    settled, _ = settle(
        raw_scores,
        fixed_scores,
        by_now,
        components,
        dict(running),
        names=list(normalize),
        aggregate="sum" if no_total is not None else aggregate,
        num_generations=1,
        is_training=False,
        fill="zero",
    )
    effective = settled.unfilled.masked_fill(is_relative & fixed_scores.isnan(), torch.nan)
    weighted = effective * by_now
    totals = [None] * len(raw) if no_total is not None else [finite_or_none(one) for one in settled.totals.tolist()]
    rows = [
        SettledRow(
            total=totals[row],
            rewards={
                name: SettledReward(
                    raw=raw[row][index],
                    effective=finite_or_none(effective[row, index].item()),
                    weighted=finite_or_none(weighted[row, index].item()),
                )
                for index, name in enumerate(normalize)
            },
        )
        for row in range(len(raw))
    ]
    return SettledRows(rows, no_total)


def _matrix(rows: Matrix, num_components: int) -> torch.Tensor:
    """Return (rows, components) with NaN for None."""
    values = [[float("nan") if value is None else value for value in row] for row in rows]
    return torch.tensor(values, dtype=torch.float64).reshape(len(rows), num_components)
