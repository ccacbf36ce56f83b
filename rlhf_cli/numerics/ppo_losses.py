"""Compute the critic's loss and estimators of the KL divergence."""

from __future__ import annotations

import torch
from torch import Tensor


def value_losses(values: Tensor, rollout_values: Tensor, returns: Tensor, clip: float | None) -> tuple[Tensor, Tensor]:
    """Return half the squared error of the critic, with PPO2's clip around its values of the rollout.

        V_clipped = V_old + clamp(V - V_old, -clip, clip)
        loss      = 0.5 max((V - R)^2, (V_clipped - R)^2)

    As in OpenAI's baselines (PPO2), `lm-human-preferences` (arXiv 2403.17031) and TRL 1.12's `PPOTrainer`. Where the
    clipped term is larger there is no gradient: the critic has moved towards R as far as one rollout allows.

    Args:
        values: any shape, V of the critic in training; if the others need no gradient, only this has one.
        rollout_values: same shape, V_old of the critic at the rollout.
        returns: same shape, R.
        clip: > 0; None = no clipping.

    Returns:
        losses: same shape. The caller masks and averages them.
        is_clipped: same shape, bool, True = the clipped term is strictly larger.
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
    http://joschu.net/blog/kl-approx.html): the mean over tokens drawn from p.

    Args:
        logp: any shape, log p of the drawn token.
        logq: same shape, log q of the same token.
    """
    return logp - logq


def k3(logp: Tensor, logq: Tensor) -> Tensor:
    """Return q/p - 1 - log(q/p): unbiased, never negative, with less variance than k1 for p near q.

    Arguments as for `k1`.
    """
    log_ratio = logq - logp
    return torch.expm1(log_ratio) - log_ratio


def adapted_coef(coef: float, kl: float, num_rows: int, *, target: float, horizon: float, max_error: float) -> float:
    """Return a penalty coefficient that adapts to the divergence: Ziegler et al. (arXiv 1909.08593), section 2.2.

        e    = clip(KL / target - 1, -max_error, max_error)
        coef = coef (1 + e n / horizon)

    One update counts `num_rows` rows, as in `lm-human-preferences`; the paper has K_beta = 1 / horizon per row.

    Args:
        coef: >= 0, the current coefficient.
        kl: the mean divergence of those rows, summed over a row's tokens, in nats.
        target: > 0, the desired divergence, in nats per row.
        horizon: > 0, in rows; the larger, the slower the coefficient changes.
        max_error: > 0; the paper has 0.2.
    """
    error = min(max(kl / target - 1.0, -max_error), max_error)
    return coef * (1.0 + error * num_rows / horizon)
