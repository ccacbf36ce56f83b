"""Compute RLOO's leave-one-out advantages if a reward does not apply to every row of a group.

RLOO (Ahmadian et al., arXiv 2402.14740) has for G completions y_1 ... y_G of a prompt the gradient
    1/G sum_i A_i grad log pi(y_i),    A_i = R_i - 1/(G - 1) sum_{j != i} R_j .

It is linear in the reward, so for R = sum_k c_k the advantage is a sum over the components. If component k applies only
to the n rows S of the group, its baseline uses the *other rows where it applies*:
    A_ik = c_ik - 1/(n - 1) sum_{j in S, j != i} c_jk    for i in S and n > 1,    else 0 ,   A_i = sum_k A_ik .

With n = G this is RLOO. If a component applies to a single row, there is no other row to compare with. To see the
effect, let p be the probability that k applies to an answer and mu the mean of c_k over answers where it does. The
baseline of row i is independent of y_i and, if it exists, has mean mu, so
    E[A_ik grad log pi(y_i)] = (1 - (1 - p)^(G-1)) E[1{k applies} (c_k - mu) grad log pi] ,

and E[1{k applies} (c_k - mu) grad log pi] = p grad mu + (mu - mu) grad p = p grad mu. So component k raises its mean
where it applies, and does not change how often it applies: that is the purpose of excluding. Filling an excluded entry
with the mean over S, with G rows in the baseline, gives (G / (G - 1)) (1 - 1/n) A_ik instead, because the mean includes
the row's own score. No fill shared by the rows gives A_ik. But since the A_ik sum to 0 in a group, there are scores for
which RLOO's own baseline gives exactly A_ik: see `scores_to_leave_out`. Shapes: N rows of all ranks, the G rows of a
group consecutive; K components. NaN = the component does not apply.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
