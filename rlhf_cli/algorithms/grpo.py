"""GRPO: a row against the mean of its group (arXiv 2402.03300, equation 10). GMPO has the same advantages.

A_i = (R_i - mean of the group) / (deviation + eps), where R_i is the row's weighted sum. With process rewards every
token has an advantage of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from rlhf_cli.algorithms.base import EPS, Algorithm, GroupAlgorithm, Round, RoundAdvantages, deviation, shares, summed
from rlhf_cli.rewards.stack.reward_matrix import token_rewards

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


@dataclass(frozen=True)
class ProcessRewards(Algorithm):
    """GRPO on rewarded positions instead of rows, summed from the end of a completion (the paper's section 4.1.3)."""

    scale: Scale = "group"
    why_not_replayed = "trainer.dense gives every token an advantage of its own; the table holds their rewards' sums"

    def of_round(self, scored: Round) -> RoundAdvantages:
        """Return the advantages of the tokens that the stack rewarded."""
        values, is_rewarded = token_rewards(scored.token_values, scored.settled, scored.is_completion, scored.own)
        # Groups may extend over ranks; each rank pads its tokens to its own longest completion.
        num_tokens = values.shape[2]
        width = scored.gather(torch.tensor([num_tokens], device=values.device)).max()
        missing = (0, int(width) - num_tokens)
        by_row = torch.nn.functional.pad(values.transpose(0, 1), missing)
        masks = torch.nn.functional.pad(torch.stack([is_rewarded, scored.is_trained], dim=1), missing)
        everyones = scored.gather(by_row.contiguous()).transpose(0, 1)
        rewarded, trained = scored.gather(masks).unbind(dim=1)
        parts = self.parts(everyones, rewarded, scored.num_generations)
        advantages = parts.sum(dim=0)
        used = advantages[scored.own, :num_tokens] * scored.is_completion
        # A tool's answer has an advantage, and no gradient.
        found = shares(scored.settled.names, parts, advantages * trained)
        return RoundAdvantages(found, used, advantages[:, 0].tolist())

    def parts(self, values: Tensor, is_rewarded: Tensor, num_generations: int) -> Tensor:
        """Return the (K, B, T) parts of the token advantages.

        With R the values at all rewarded positions of all completions of a group,
            r~_{i,j} = (r_{i,j} - mean(R)) / (std(R) + eps)
            A_{i,t}  = sum of r~_{i,j} over the rewarded positions j >= t of completion i

        The paper has eps = 0; eps and the unbiased std are those of GRPO, which this equals if every completion is
        rewarded only at its last token. The mean is over positions instead of completions.

        values: (K, B, T), each reward at each token, read at rewarded positions. is_rewarded: (B, T) bool, True = the
        position is rewarded, possibly with 0; a row may have none. The result is 0 after a row's last rewarded
        position, and in a group with fewer than two. The caller masks padding before a rewarded position.
        """
        positions = values.masked_fill(~is_rewarded, torch.nan).flatten(1).T.contiguous()
        parts = Grpo(self.scale).parts(positions, num_generations * values.shape[2])
        return parts.T.reshape_as(values).flip(2).cumsum(2).flip(2)
