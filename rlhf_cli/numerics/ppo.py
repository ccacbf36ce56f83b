"""Compute the numbers of PPO: advantages per token (GAE), what a critic explains, its loss, the KL divergence.

Shapes: B rows (a caller may stack several rewards of the same rows along B), T token positions. In every mask True =
the position counts: the policy chose this token. False is padding on the right, or a token from a tool in the middle of
a row; entries of `values` there (NaN, say) are not read. Sums over all ranks use `sum_over_ranks`: a function that
takes a 1-D float64 tensor and returns its elementwise sum over ranks. The default is for a single rank.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_EPS = 1e-8  # TRL 1.12's, inside the root
_ROUNDING = 1e-14
"""A deviation below this share of the mean is rounding of float64 sums of equal numbers."""


def _single_rank(sums: Tensor) -> Tensor:
    return sums


def gae(
    rewards: Tensor,
    values: Tensor,
    is_action: Tensor,
    *,
    last_values: Tensor,
    is_truncated: Tensor,
    gamma: float,
    lam: float,
) -> tuple[Tensor, Tensor]:
    """Return advantages and returns by GAE.

    The method is arXiv 1506.02438, eq. 16, with the end of a row as in arXiv 1712.00378, eq. 3. Over the actions t of a
    row, t+1 being the next *action*,
        delta_t = r_t + gamma V_{t+1} - V_t
        A_t     = delta_t + gamma lam A_{t+1}            (after the last action A = 0)
        R_t     = A_t + V_t

    After the last action V is 0 in a terminated row, and last_values in a truncated one, whose return would continue. A
    reward between or after actions belongs to the last action before it; a reward before the first action is ignored.

    rewards: (B, T), finite everywhere. values: (B, T), V of the state in which token t is chosen. is_action: (B, T)
    bool, True = the policy chose this token; a row may have none. last_values: (B,), V of the state after the last
    token, read only for truncated rows. is_truncated: (B,) bool, False = the row ends after the last action. gamma in
    (0, 1]: the discount from one action to the next. lam in [0, 1]: 0 = the TD error alone, 1 = all later rewards. Both
    results are (B, T), 0 where is_action is False.
    """
    if not rewards.shape[1]:
        return torch.zeros_like(values), torch.zeros_like(values)
    next_values = last_values.where(is_truncated, 0.0)
    following, uncredited = torch.zeros_like(next_values), torch.zeros_like(next_values)
    reversed_advantages = []
    for reward, value, acts in zip(*(part.flip(1).unbind(1) for part in (rewards, values, is_action)), strict=True):
        uncredited = uncredited + reward
        advantage = uncredited + gamma * next_values - value + gamma * lam * following
        reversed_advantages.append(advantage.where(acts, 0.0))
        next_values = torch.where(acts, value, next_values)
        following = torch.where(acts, advantage, following)
        uncredited = uncredited.where(~acts, 0.0)
    advantages = torch.stack(reversed_advantages[::-1], dim=1)
    return advantages, (advantages + values).where(is_action, 0.0)


def whiten(
    values: Tensor, mask: Tensor, sum_over_ranks: Callable[[Tensor], Tensor] = _single_rank
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (v - mean) / sqrt(std^2 + 1e-8) over all True positions of all ranks: TRL 1.12's `masked_whiten`.

    The deviation is unbiased (n - 1), from squares around a mean computed before (two passes, in float64).

    values: (B, T). mask: (B, T) bool, True = counts; a rank may have none. Returns (B, T) whitened values, 0 outside
    the mask, then mean and std without the 1e-8, all of `values`' dtype. With one position
    overall, whitened and std are 0; without positions the mean is 0 as well.
    """
    mean, squares, count = _moments(values, mask, sum_over_ranks)
    variance = squares / (count - 1).clamp(min=1)
    whitened = ((values.double() - mean) * (variance + _EPS).rsqrt()).where(mask, 0.0)
    return whitened.to(values), mean.to(values), variance.sqrt().to(values)


def explained_variance(
    values: Tensor, returns: Tensor, mask: Tensor, sum_over_ranks: Callable[[Tensor], Tensor] = _single_rank
) -> Tensor:
    """Return 1 - Var(returns - values) / Var(returns) over all True positions of all ranks.

    1: the critic predicts the returns up to a constant; 0: no better than any constant; negative: worse. NaN if the
    returns do not vary, as with one position.

    values, returns: (B, T). mask: (B, T) bool, True = counts. Returns (), float64.
    """
    _, unexplained, _ = _moments(returns.double() - values.double(), mask, sum_over_ranks)
    mean, total, count = _moments(returns, mask, sum_over_ranks)
    varies = total > count * (_ROUNDING * mean) ** 2
    return torch.where(varies, 1.0 - unexplained / total, torch.nan)


def _moments(values: Tensor, mask: Tensor, sum_over_ranks: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return float64 scalars over all ranks: the mean (0 if empty), the sum of squares around it, the count."""
    exact = values.double()
    count, total = sum_over_ranks(torch.stack([mask.sum().double(), exact.where(mask, 0.0).sum()])).unbind()
    mean = total / count.clamp(min=1)
    (squares,) = sum_over_ranks(((exact - mean) ** 2).where(mask, 0.0).sum().unsqueeze(0)).unbind()
    return mean, squares, count


def value_losses(values: Tensor, rollout_values: Tensor, returns: Tensor, clip: float | None) -> tuple[Tensor, Tensor]:
    """Return half the squared error of the critic, with PPO2's clip around its values of the rollout.

        V_clipped = V_old + clamp(V - V_old, -clip, clip)
        loss      = 0.5 max((V - R)^2, (V_clipped - R)^2)

    As in OpenAI's baselines (PPO2), `lm-human-preferences` (arXiv 2403.17031) and TRL 1.12's `PPOTrainer`. Where the
    clipped term is larger there is no gradient: the critic has moved towards R as far as one rollout allows.

    values: any shape, V of the critic in training. rollout_values, returns: V_old of the critic at the rollout, and R.
    clip: > 0; None = no clipping. The second result is bool, True = the clipped term is strictly larger.
    """
    squares = (values - returns) ** 2
    if clip is None:
        return 0.5 * squares, torch.zeros_like(squares, dtype=torch.bool)
    held = rollout_values + (values - rollout_values).clamp(-clip, clip)
    held_squares = (held - returns) ** 2
    return 0.5 * torch.maximum(squares, held_squares), held_squares > squares


def k1(logp: Tensor, logq: Tensor) -> Tensor:
    """Return log p - log q: unbiased, of either sign.

    Like k3 an estimator of KL(p || q) = E_p[log p - log q] from a sample of p (Schulman, "Approximating KL Divergence",
    http://joschu.net/blog/kl-approx.html): the mean over drawn tokens, whose log p and log q are `logp` and `logq`.
    """
    return logp - logq


def k3(logp: Tensor, logq: Tensor) -> Tensor:
    """Return q/p - 1 - log(q/p): unbiased, never negative, with less variance than k1 for p near q."""
    log_ratio = logq - logp
    return torch.expm1(log_ratio) - log_ratio


def adapted_coef(coef: float, kl: float, num_rows: int, *, target: float, horizon: float, max_error: float) -> float:
    """Return a penalty coefficient that adapts to the divergence: Ziegler et al. (arXiv 1909.08593), section 2.2.

        e    = clip(KL / target - 1, -max_error, max_error)
        coef = coef (1 + e n / horizon)

    One update counts `num_rows` rows, as in `lm-human-preferences`; the paper has K_beta = 1 / horizon per row.

    kl, target: the mean divergence of those rows, summed over a row's tokens, and the desired one, in nats. horizon: in
    rows; the larger, the slower the coefficient changes. max_error: the paper has 0.2.
    """
    error = min(max(kl / target - 1.0, -max_error), max_error)
    return coef * (1.0 + error * num_rows / horizon)
