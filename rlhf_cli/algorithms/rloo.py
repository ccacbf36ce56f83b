"""RLOO: a row against the mean of the others in its group (arXiv 2402.14740, equation 7).

    A_i = R_i - 1/(n - 1) sum of the others' R_j

RLOO is linear in the reward, so for R = sum_k c_k the advantage is a sum over the rewards. If reward k applies only to
the n rows S of the group, its baseline uses the *other rows where it applies*:
    A_ik = c_ik - 1/(n - 1) sum_{j in S, j != i} c_jk    for i in S and n > 1,    else 0 ,   A_i = sum_k A_ik .

The baseline of a row is independent of its answer, so in expectation reward k raises its mean where it applies, and
does not change how often it applies: that is the purpose of excluding. Filling an excluded entry with the mean over S
gives (G / (G - 1)) (1 - 1/n) A_ik in a group of G instead, because the mean includes the row's own score. But since the
A_ik sum to 0 in a group, there are scores whose own RLOO baseline gives exactly A_ik: see `scores_to_leave_out`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_cli.algorithms.base import EPS, SAME, Given, GroupAlgorithm, deviation, summed
from rlhf_cli.rewards.stack.aggregating import Aggregate
from rlhf_cli.rewards.stack.reward_matrix import Settled, where_rewards_apply


@dataclass(frozen=True)
class Rloo(GroupAlgorithm):
    """RLOO; `is_normalized`, `clip_range` and `kl_coef` are TRL's normalize_advantages, reward_clip_range and beta."""

    fill = "zero"
    is_normalized: bool = False

    @property
    def is_scaled_by_round(self) -> bool:
        """Return whether the advantages are normalised over the round."""
        return self.is_normalized

    def given(self, settled: Settled, aggregate: Aggregate, num_generations: int) -> Given:
        """Return scores whose leave-one-out over all rows is right where a reward does not apply to every row.

        TRL's baseline of a row is the mean of the other rows. TRL still handles the KL and the normalisation.
        """
        rewards, weights = where_rewards_apply(settled), settled.trl_weights
        is_missing = rewards.isnan()
        has_gaps = bool((is_missing.any(dim=1) & ~is_missing.all(dim=1)).any())
        if callable(aggregate) or num_generations < 2 or not has_gaps:
            return super().given(settled, aggregate, num_generations)
        scores = scores_to_leave_out(rewards, num_generations)
        if self.clip_range is None:
            return Given(scores, weights, scores * weights)
        # The amount that clipping removes from a row's total is a reward of its own, which applies to every row.
        totals = (rewards * weights).nansum(dim=1)
        taken = totals.clamp(*self.clip_range) - totals
        clipped = torch.zeros_like(rewards)
        clipped[:, 0] = (scores * weights).sum(dim=1) + taken
        first = torch.zeros_like(weights)
        first[0] = 1.0
        clipped = clipped.masked_fill(settled.is_unscorable.unsqueeze(1), torch.nan)
        return Given(clipped, first, scores * weights, is_clipped=True)

    def parts(self, contributions: Tensor, num_generations: int) -> Tensor:
        """Return c_ik minus the mean of the others in its group, optionally normalised over the batch."""
        grouped = contributions.view(-1, num_generations, contributions.shape[1])
        count = (~grouped.isnan()).sum(dim=1, keepdim=True)
        others = (grouped.nansum(dim=1, keepdim=True) - grouped) / (count - 1)
        parts = (grouped - others).reshape_as(contributions)
        if self.is_normalized:
            parts = (parts - parts.nanmean(dim=0, keepdim=True)) / (deviation(summed(parts)) + EPS)
        return parts.nan_to_num(nan=0.0)

    def has_parts(self, aggregate: Aggregate, num_generations: int) -> bool:
        """Return False for clipped totals, and for a KL that is normalised with the rewards."""
        is_linear = self.clip_range is None and not (self.kl_coef and self.is_normalized)
        return is_linear and super().has_parts(aggregate, num_generations)

    def excess(self, advantages: Tensor, totals: Tensor, num_generations: int, logged: Sequence[float]) -> Tensor:
        """Return the same. The KL must sum to 0 in each group, and the advantages must be those that TRL logged."""
        if not self.kl_coef:
            return super().excess(advantages, totals, num_generations, logged)
        difference = advantages - self.advantages(totals, num_generations)
        of_trl = torch.tensor(list(logged)[-len(advantages) :]).to(advantages)
        difference = torch.cat([difference.view(-1, num_generations).mean(dim=1), advantages[-len(of_trl) :] - of_trl])
        largest = torch.stack([advantages.abs().max(), totals.nan_to_num().abs().max()])
        return difference.abs().max() - SAME * largest.max()

    def shares(
        self, names: Sequence[str], contributions: Tensor, advantages: Tensor, num_generations: int
    ) -> dict[str, float]:
        """Return the same, and the share of the KL: the rest."""
        found = super().shares(names, contributions, advantages, num_generations)
        return found | ({"kl": 1.0 - sum(found.values())} if found and self.kl_coef else {})


def scores_to_leave_out(rewards: Tensor, num_generations: int) -> Tensor:
    """Return (N, K) scores x' without gaps, whose leave-one-out over all rows is A_ik.

        x'_i - 1/(G - 1) sum_{j != i} x'_j = G/(G - 1) (x'_i - mean x') = A_ik    for    x'_i = m + (G - 1)/G A_ik ,

    with m the reward's mean in the group (0 if it applies to no row) and G the number of scorable rows in the group;
    other rows stay all-NaN. A reward that applies to all G rows keeps its scores unchanged.
    """
    grouped = rewards.double().reshape(-1, num_generations, rewards.shape[1])
    is_there = ~grouped.isnan()
    is_scorable = is_there.any(dim=2, keepdim=True)
    num_scorable = is_scorable.sum(dim=1, keepdim=True)
    mean = grouped.nanmean(dim=1, keepdim=True).nan_to_num(0.0)
    parts = Rloo().parts(rewards.double(), num_generations).reshape_as(grouped)
    filled = mean + parts * (num_scorable - 1) / num_scorable.clamp(min=1)
    is_whole = is_there.sum(dim=1, keepdim=True) == num_scorable
    scores = torch.where(is_whole, grouped, filled).masked_fill(~is_scorable, torch.nan)
    return scores.reshape_as(rewards).to(rewards.dtype)
