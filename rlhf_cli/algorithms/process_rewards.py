"""Process rewards: every token has an advantage of its own (DeepSeekMath, arXiv 2402.03300, section 4.1.3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_cli.algorithms.base import Algorithm
from rlhf_cli.algorithms.grpo import Grpo, Scale


@dataclass(frozen=True)
class ProcessRewards(Algorithm):
    """GRPO on rewarded positions instead of rows, summed from the end of a completion."""

    scale: Scale = "group"
    why_not_replayed = "trainer.dense gives every token an advantage of its own; the table holds their rewards' sums"

    def parts(self, values: Tensor, is_rewarded: Tensor, num_generations: int) -> Tensor:
        """Return the (K, B, T) parts of the token advantages.

        With R the values at all rewarded positions of all completions of a group,
            r~_{i,j} = (r_{i,j} - mean(R)) / (std(R) + eps)
            A_{i,t}  = sum of r~_{i,j} over the rewarded positions j >= t of completion i

        The paper has eps = 0; eps and the unbiased std are those of GRPO, which this equals if every completion is
        rewarded only at its last token. The mean is over positions instead of completions.

        Args:
            values: (K, B, T), each reward at each token; entries at positions that are not rewarded are not read.
            is_rewarded: (B, T) bool, True = the position is rewarded, possibly with 0. A row may have none.
            num_generations: completions in a group; rows of a group are consecutive and complete.

        Returns:
            (K, B, T); 0 after a row's last rewarded position, and in a group with fewer than two of them. The caller
            masks padding before a rewarded position.
        """
        positions = values.masked_fill(~is_rewarded, torch.nan).flatten(1).T.contiguous()
        parts = Grpo(self.scale).parts(positions, num_generations * values.shape[2])
        return parts.T.reshape_as(values).flip(2).cumsum(2).flip(2)

    def advantages(self, values: Tensor, is_rewarded: Tensor, num_generations: int) -> Tensor:
        """Return the (B, T) advantages: the sum of the parts over the rewards."""
        return self.parts(values, is_rewarded, num_generations).sum(dim=0)
