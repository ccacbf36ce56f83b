"""Split advantages into the parts that are due to each reward.

TRL's advantages are linear in the components, for a given deviation of the batch. So an advantage is a sum of parts,
A_i = sum_k p_ik, and the share of component k is
    share_k = sum_i p_ik A_i / sum_i A_i^2 .

The shares sum to 1 over the components; a component that pulls in the opposite direction has a negative share. They
describe the given advantages, and do not predict training without the component. Shapes: N rows of all ranks, the rows
of a group consecutive; K components; NaN rows are unscorable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

_EPS = 1e-4  # TRL's


def grpo_parts(
    contributions: Tensor, num_generations: int, scale: Literal["group", "batch", "none"], eps: float = _EPS
) -> Tensor:
    """Return the (N, K) parts of GRPO's (r - mean of group) / (deviation + eps), from (N, K) weighted rewards.

    `scale` is TRL's scale_rewards. All-NaN rows get 0.
    """
    grouped = contributions.view(-1, num_generations, contributions.shape[1])
    centred = (grouped - grouped.nanmean(dim=1, keepdim=True)).reshape_as(contributions)
    if scale == "none":
        return centred.nan_to_num(0.0)
    total = _total(contributions)
    if scale == "group":
        deviation = _nanstd(total.view(-1, num_generations)).repeat_interleave(num_generations)
    else:
        deviation = _nanstd(total).expand_as(total)
    return (centred / (deviation + eps).unsqueeze(1)).nan_to_num(0.0)


def normalized_sum_parts(contributions: Tensor, eps: float = _EPS) -> Tensor:
    """Return the (N, K) parts of normalize_then_sum's last step: (r - mean of batch) / (deviation of batch + eps).

    `contributions` are the weighted, group-normalised components.
    """
    centred = contributions - contributions.nanmean(dim=0, keepdim=True)
    return (centred / (_nanstd(_total(contributions)) + eps)).nan_to_num(0.0)


def rloo_parts(contributions: Tensor, num_generations: int, *, is_normalized: bool, eps: float = _EPS) -> Tensor:
    """Return the (N, K) parts of RLOO's r minus the mean of the others in its group, optionally batch-normalised."""
    grouped = contributions.view(-1, num_generations, contributions.shape[1])
    count = (~grouped.isnan()).sum(dim=1, keepdim=True)
    baseline = (grouped.nansum(dim=1, keepdim=True) - grouped) / (count - 1)
    parts = (grouped - baseline).reshape_as(contributions)
    if is_normalized:
        parts = (parts - parts.nanmean(dim=0, keepdim=True)) / (_nanstd(_total(parts)) + eps)
    return parts.nan_to_num(0.0)


def shares(parts: Tensor, advantages: Tensor) -> list[float] | None:
    """Return one share per component, None if every advantage is 0; `parts` is (N, K), `advantages` (N,)."""
    energy = float((advantages.double() ** 2).sum())
    if energy == 0.0:
        return None
    by_component: list[float] = ((parts.double() * advantages.double().unsqueeze(1)).sum(dim=0) / energy).tolist()
    return by_component


def _total(contributions: Tensor) -> Tensor:
    """Return the (N,) sums of the rows, NaN for all-NaN rows."""
    total = contributions.nansum(dim=1)
    return torch.where(contributions.isnan().all(dim=1), torch.full_like(total, torch.nan), total)


def _nanstd(values: Tensor) -> Tensor:
    """Return the unbiased deviation over the last dimension, ignoring NaN; NaN for a single value, as in TRL."""
    count = (~values.isnan()).sum(dim=-1)
    squares = ((values - values.nanmean(dim=-1, keepdim=True)) ** 2).nansum(dim=-1)
    return (squares / (count - 1)).sqrt()


def token_shares(
    parts: Tensor, advantages: Tensor, sum_over_ranks: Callable[[Tensor], Tensor] = lambda sums: sums
) -> list[float] | None:
    """Return one share per component of token advantages, None if every advantage is 0.

    parts: (K, B, T), whose sum over K is the advantage before whitening. advantages: (B, T), whitened or not; 0 outside
    the actions. With A = (sum_k p_k - mean) / std and sum A = 0, the shares above become
        share_k = sum p_k A / sum_k sum p_k A .

    sum_over_ranks is given a 1-D float64 tensor.
    """
    used = advantages.double()
    along = sum_over_ranks((parts.double() * used).flatten(1).sum(dim=1))
    (num_used,) = sum_over_ranks(used.count_nonzero().double().unsqueeze(0)).tolist()
    if num_used == 0:
        return None
    by_component: list[float] = (along / along.sum()).tolist()
    return by_component
