"""Make advantages of settled rewards in groups: GRPO, RLOO, process rewards.

    GRPO    A_i = (R_i - mean of the group) / (deviation + eps)        arXiv 2402.03300, equation 10 (scale: group)
    RLOO    A_i = R_i - 1/(n - 1) sum of the others' R_j               arXiv 2402.14740, equation 7

R_i is the row's weighted sum. The operations are TRL 1.16's, in TRL's order and precision, so that results are bitwise
equal: a group whose deviation is near 0 divides its rounding errors by eps. Shapes: N rows of all ranks, the rows of a
group consecutive; K rewards or components, NaN where one does not apply. An all-NaN row has no total: it gets no
advantage and counts in no mean.

RLOO is linear in the reward, so for R = sum_k c_k the advantage is a sum over the components. If component k applies
only to the n rows S of the group, its baseline uses the *other rows where it applies*:
    A_ik = c_ik - 1/(n - 1) sum_{j in S, j != i} c_jk    for i in S and n > 1,    else 0 ,   A_i = sum_k A_ik .

The baseline of a row is independent of its answer, so in expectation component k raises its mean where it applies, and
does not change how often it applies: that is the purpose of excluding. Filling an excluded entry with the mean over S
gives (G / (G - 1)) (1 - 1/n) A_ik in a group of G instead, because the mean includes the row's own score. But since the
A_ik sum to 0 in a group, there are scores whose own RLOO baseline gives exactly A_ik: see `scores_to_leave_out`.

For a given deviation of the batch, TRL's advantages are linear in the components: A_i = sum_k p_ik. The share of
component k is
    share_k = sum_i p_ik A_i / sum_i A_i^2 .

The shares sum to 1; a component that pulls in the opposite direction has a negative share. They describe the given
advantages, and do not predict training without the component.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from torch import Tensor

EPS = 1e-4
"""TRL adds this to a deviation before it divides by it."""

Scale: TypeAlias = Literal["group", "batch", "none"]
"""TRL's scale_rewards: the divisor of the centred values is the group's deviation, the batch's, or 1."""


def summed(rewards: Tensor, weights: Tensor) -> Tensor:
    """Return the (N,) weighted sums of (N, K) rewards, NaN for all-NaN rows."""
    totals = (rewards * weights.unsqueeze(0)).nansum(dim=1)
    totals[rewards.isnan().all(dim=1)] = torch.nan
    return totals


def grpo_advantages(totals: Tensor, num_generations: int, scale: Scale) -> Tensor:
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


def leave_one_out(rewards: Tensor, num_generations: int) -> Tensor:
    """Return the (N, K) parts A_ik above of (N, K) rewards.

    A part is 0 if the component does not apply to the row, or applies to no other row of the group.
    """
    grouped, is_there = _grouped(rewards, num_generations)
    count = is_there.sum(dim=1, keepdim=True)
    others = (grouped.nansum(dim=1, keepdim=True) - grouped) / (count - 1).clamp(min=1)
    return torch.where(is_there & (count > 1), grouped - others, 0.0).reshape_as(rewards)


def scores_to_leave_out(rewards: Tensor, num_generations: int) -> Tensor:
    """Return (N, K) scores x' without gaps, whose leave-one-out over all rows is A_ik.

        x'_i - 1/(G - 1) sum_{j != i} x'_j = G/(G - 1) (x'_i - mean x') = A_ik    for    x'_i = m + (G - 1)/G A_ik ,

    with m the component's mean in the group (0 if it applies to no row) and G the number of scorable rows in the group;
    other rows stay all-NaN. So a trainer's steps before and after its baseline still work. A component that applies to
    all G rows keeps its scores unchanged.
    """
    grouped, is_there = _grouped(rewards, num_generations)
    is_scorable = is_there.any(dim=2, keepdim=True)
    num_scorable = is_scorable.sum(dim=1, keepdim=True)
    mean = grouped.nanmean(dim=1, keepdim=True).nan_to_num(0.0)
    parts = leave_one_out(rewards, num_generations).double().reshape_as(grouped)
    filled = mean + parts * (num_scorable - 1) / num_scorable.clamp(min=1)
    is_whole = is_there.sum(dim=1, keepdim=True) == num_scorable
    scores = torch.where(is_whole, grouped, filled).masked_fill(~is_scorable, torch.nan)
    return scores.reshape_as(rewards).to(rewards.dtype)


def _grouped(rewards: Tensor, num_generations: int) -> tuple[Tensor, Tensor]:
    """Return (groups, rows of a group, K) in float64, and a mask that is True where it is not NaN."""
    grouped = rewards.double().reshape(-1, num_generations, rewards.shape[1])
    return grouped, ~grouped.isnan()


def process_advantages(
    values: Tensor, is_rewarded: Tensor, num_generations: int, scale: Scale, eps: float = EPS
) -> Tensor:
    """Return token advantages by process supervision: normalise rewarded positions over the group, sum from the end.

    DeepSeekMath (arXiv:2402.03300), section 4.1.3. With R the values at all rewarded positions of all completions of a
    group,
        r~_{i,j} = (r_{i,j} - mean(R)) / (std(R) + eps)
        A_{i,t}  = sum of r~_{i,j} over the rewarded positions j >= t of completion i

    The paper has eps = 0; eps and the unbiased std (n - 1) are those of TRL 1.16's outcome advantages, which this
    equals if every completion is rewarded only at its last token. The mean is over positions instead of completions.

    Args:
        values: (B, T), the reward at each token; entries at positions that are not rewarded (NaN, say) are not read.
        is_rewarded: (B, T) bool, True = the position is rewarded, possibly with 0. A row may have none.
        num_generations: completions in a group; rows of a group are consecutive and complete.
        scale: `group`: as above. `batch`: std over all rewarded positions of the batch, around the batch's own mean
            (the subtracted mean is still the group's). `none`: no division.
        eps: added to the std.

    Returns:
        (B, T), of `values`' dtype; 0 after a row's last rewarded position, and in a group with fewer than two of them.
        The caller masks padding before a rewarded position.
    """
    groups = values.reshape(-1, num_generations * values.shape[1])
    present = is_rewarded.reshape(groups.shape)
    centred = (groups - _mean(groups, present)).where(present, 0.0)
    if scale == "group":
        centred = centred / (_std(groups, present) + eps)
    elif scale == "batch":
        centred = centred / (_std(groups.reshape(1, -1), present.reshape(1, -1)) + eps)
    return centred.reshape(values.shape).flip(1).cumsum(1).flip(1)


def _mean(values: Tensor, present: Tensor) -> Tensor:
    """Return the mean of the positions that count, (G, N) and True = counts -> (G, 1); 0 if there are none."""
    return values.where(present, 0.0).sum(1, keepdim=True) / present.sum(1, keepdim=True).clamp(min=1)


def _std(values: Tensor, present: Tensor) -> Tensor:
    """Return sqrt(sum (x - mean)^2 / (n - 1)) of the positions that count, (G, N) -> (G, 1); 0 if n < 2."""
    squares = ((values - _mean(values, present)) ** 2).where(present, 0.0)
    return (squares.sum(1, keepdim=True) / (present.sum(1, keepdim=True) - 1).clamp(min=1)).sqrt()


def grpo_parts(contributions: Tensor, num_generations: int, scale: Scale, eps: float = EPS) -> Tensor:
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


def rloo_parts(contributions: Tensor, num_generations: int, *, is_normalized: bool, eps: float = EPS) -> Tensor:
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
