"""Fill excluded scores and z-score scores within groups.

Shapes: N rows of all ranks, the rows of a group consecutive; K components. NaN means "does not apply".
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rlhf_cli.numerics.score_scaling import deviation

Fill = Literal["group", "zero"]


def filled(effective: Tensor, num_generations: int, fill: Fill = "group") -> Tensor:
    """Return (N, K) with every excluded entry set to a number that neither helps nor hurts its row.

    `zero`: it adds 0 to the total; for a trainer without groups, and for RLOO, whose baseline excludes it
    (algorithms/rloo.py). `group`: its component's mean over the group's rows where it applies. That equals the group's
    mean, so its part of an advantage is exactly 0 under GRPO, whose baseline is that mean; without such a row it is 0.
    A row in which no component applies stays NaN: TRL gives it no advantage and counts it in no mean.
    """
    if not effective.isnan().any():
        return effective
    grouped = effective.view(-1, num_generations, effective.shape[1])
    mean = grouped.nanmean(dim=1, keepdim=True).nan_to_num(0.0).expand_as(grouped).reshape_as(effective)
    applies_somewhere = ~effective.isnan().all(dim=1, keepdim=True)
    instead = mean if fill == "group" else torch.zeros_like(mean)
    return torch.where(effective.isnan() & applies_somewhere, instead, effective)


def normalized_in_group(effective: Tensor, num_generations: int, eps: float = 1e-4) -> Tensor:
    """Return (N, K), each component z-scored within its group, as GDPO does before it sums (arXiv 2601.05242)."""
    grouped = effective.view(-1, num_generations, effective.shape[1])
    mean = grouped.nanmean(dim=1, keepdim=True)
    spread = torch.from_numpy(deviation(grouped.transpose(1, 2).numpy())).transpose(1, 2)
    return ((grouped - mean) / (spread + eps)).reshape_as(effective)
