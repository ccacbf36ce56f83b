"""Compute advantages from settled rewards like TRL's GRPOTrainer and RLOOTrainer, outside of a trainer.

    GRPO    A_i = (R_i - mean of the group) / (deviation + eps)        arXiv 2402.03300, equation 10 (scale: group)
    RLOO    A_i = R_i - 1/(n - 1) sum of the others' R_j               arXiv 2402.14740, equation 7

R_i is the row's weighted sum. The operations are TRL 1.16's, in TRL's order and precision, so that results are bitwise
equal: a group whose deviation is near 0 divides its rounding errors by eps. tests/numerics compares them with another
derivation, tests/hindsight with results of real trainers. Shapes: N rows of all ranks, the rows of a group consecutive;
K rewards. An all-NaN row has no total: it gets no advantage and counts in no mean.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

EPS = 1e-4
"""TRL adds this to a deviation before it divides by it."""


def summed(rewards: Tensor, weights: Tensor) -> Tensor:
    """Return the (N,) weighted sums of (N, K) rewards, NaN for all-NaN rows."""
    totals = (rewards * weights.unsqueeze(0)).nansum(dim=1)
    totals[rewards.isnan().all(dim=1)] = torch.nan
    return totals


def grpo_advantages(totals: Tensor, num_generations: int, scale: Literal["group", "batch", "none"]) -> Tensor:
    """Return GRPO's (N,) advantages of (N,) totals; `scale` is TRL's scale_rewards."""
    grouped = totals.view(-1, num_generations)
    centred = totals - torch.nanmean(grouped, dim=1).repeat_interleave(num_generations, dim=0)
    if scale == "group":
        centred = centred / (_deviation(grouped).repeat_interleave(num_generations, dim=0) + EPS)
    elif scale == "batch":
        centred = centred / (_deviation(totals.unsqueeze(0)).expand_as(totals) + EPS)
    return torch.nan_to_num(centred, nan=0.0)


def rloo_advantages(totals: Tensor, num_generations: int, *, is_normalized: bool) -> Tensor:
    """Return RLOO's (N,) advantages of (N,) totals, optionally normalised over the batch."""
    grouped = totals.view(-1, num_generations)
    count = (~grouped.isnan()).sum(dim=1, keepdim=True)
    others = (torch.nansum(grouped, dim=1, keepdim=True) - grouped) / (count - 1)
    advantages = totals - others.view(-1)
    if is_normalized:
        advantages = (advantages - torch.nanmean(advantages)) / (_deviation(advantages.unsqueeze(0)).squeeze(0) + EPS)
    return torch.nan_to_num(advantages, nan=0.0)


def _deviation(values: Tensor) -> Tensor:
    """Return the unbiased deviation over the last dimension without NaN; NaN for fewer than two values."""
    mean = torch.nanmean(values, dim=-1, keepdim=True)
    variance = torch.nanmean((values - mean) ** 2, dim=-1)
    count = (~values.isnan()).sum(dim=-1)
    return torch.sqrt(variance * (count / (count - 1)))
