"""GRPO: a row against the mean of its group (arXiv 2402.03300, equation 10). GMPO has the same advantages.

A_i = (R_i - mean of the group) / (deviation + eps), where R_i is the row's weighted sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from torch import Tensor

from rlhf_cli.algorithms.base import EPS, GroupAlgorithm, deviation, summed

Scale: TypeAlias = Literal["group", "batch", "none"]
"""TRL's scale_rewards: the divisor of the centred values is the group's deviation, the batch's, or 1."""


@dataclass(frozen=True)
class Grpo(GroupAlgorithm):
    """GRPO and its variants; `scale` is TRL's scale_rewards."""

    scale: Scale = "group"

    @property
    def is_scaled_by_round(self) -> bool:
        """Return whether the deviation is that of the round."""
        return self.scale == "batch"

    def parts(self, contributions: Tensor, num_generations: int) -> Tensor:
        """Return (c_ik - mean of the group) / (deviation of the totals + eps)."""
        grouped = contributions.view(-1, num_generations, contributions.shape[1])
        centred = (grouped - grouped.nanmean(dim=1, keepdim=True)).reshape_as(contributions)
        if self.scale != "none":
            # For a batch, all rows are one group.
            totals = summed(contributions).view(-1, num_generations if self.scale == "group" else len(contributions))
            centred = centred / (deviation(totals).repeat_interleave(totals.shape[1]) + EPS).unsqueeze(1)
        return centred.nan_to_num(nan=0.0)
