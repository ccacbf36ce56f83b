"""Settle rows that are no batch of a training: each with its total, and by name what every reward came to."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rlhf_cli.json_values import finite_or_none
from rlhf_cli.measure.scored_rows import SettledReward, SettledRow
from rlhf_cli.stack.component import Component
from rlhf_cli.stack.settling import settle_alone


def settled_rows(
    components: Sequence[Component],
    raw: Sequence[Sequence[float | None]],
    fixed: Sequence[Sequence[float | None]],
    weights: Sequence[float],
) -> list[SettledRow]:
    """Return each row's total and by name its raw, effective and weighted reward.

    raw, fixed: one list a row with an entry a component, as the stack's outcomes hold them.
    """

    def matrix(rows: Sequence[Sequence[float | None]]) -> torch.Tensor:
        return torch.tensor([[_nan(value) for value in row] for row in rows], dtype=torch.float64)

    by_now = torch.tensor(weights, dtype=torch.float64)
    settled = settle_alone(matrix(raw), matrix(fixed), by_now, components)
    effective, weighted = settled.unfilled, settled.unfilled * by_now
    return [
        SettledRow(
            total=finite_or_none(weighted[row].nansum().item()) if not settled.is_unscorable[row] else None,
            rewards={
                component.name: SettledReward(
                    raw=raw[row][index],
                    effective=finite_or_none(effective[row, index].item()),
                    weighted=finite_or_none(weighted[row, index].item()),
                )
                for index, component in enumerate(components)
            },
        )
        for row in range(len(raw))
    ]


def _nan(value: float | None) -> float:
    return float("nan") if value is None else value
