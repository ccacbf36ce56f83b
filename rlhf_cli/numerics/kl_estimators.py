"""Kullback-Leibler divergence from sampled tokens, and the controller that keeps it near a target."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

_MOST_ERROR = 0.2  # lm-human-preferences' clip of the relative error


def k1(logp: Tensor, logq: Tensor) -> Tensor:
    """log p - log q: unbiased, of either sign.

    Like k3 an estimator of KL(p || q) = E_p[log p - log q] from a sample of p (Schulman, "Approximating KL
    Divergence", http://joschu.net/blog/kl-approx.html): the mean over tokens drawn from p.

    Args:
        logp: any shape, log p of the token that was drawn.
        logq: same shape, log q of the same token.
    """
    return logp - logq


def k3(logp: Tensor, logq: Tensor) -> Tensor:
    """q/p - 1 - log(q/p): unbiased, never negative, of less variance than k1 for p near q. Arguments as for `k1`."""
    log_ratio = logq - logp
    return torch.expm1(log_ratio) - log_ratio


@dataclass(frozen=True)
class AdaptiveKl:
    """A penalty's coefficient that follows the divergence: Ziegler et al. (arXiv 1909.08593), section 2.2.

        e    = clip(KL / target - 1, -0.2, 0.2)
        coef = coef (1 + e n / horizon)

    `n` rows at a time, as in `lm-human-preferences`; the paper has K_beta = 1 / horizon a row.
    """

    coef: float
    target: float
    horizon: float

    def __post_init__(self) -> None:
        if not self.target > 0.0 or not self.horizon > 0.0 or not self.coef >= 0.0:
            raise ValueError(f"{self}: target and horizon are above 0, coef is not below it")

    def updated(self, kl: float, num_rows: int) -> AdaptiveKl:
        """The state after `num_rows` rows whose mean divergence (sum over a row's tokens) was `kl`."""
        if math.isnan(kl):
            raise ValueError("the divergence is NaN")
        error = min(max(kl / self.target - 1.0, -_MOST_ERROR), _MOST_ERROR)
        return replace(self, coef=self.coef * (1.0 + error * num_rows / self.horizon))
