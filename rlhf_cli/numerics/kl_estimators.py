"""Estimate the Kullback-Leibler divergence from sampled tokens, and adapt a penalty to a target divergence."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor


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


@dataclass(frozen=True)
class AdaptiveKl:
    """A penalty coefficient that adapts to the divergence: Ziegler et al. (arXiv 1909.08593), section 2.2.

        e    = clip(KL / target - 1, -max_error, max_error)
        coef = coef (1 + e n / horizon)

    One update counts `n` rows, as in `lm-human-preferences`; the paper has K_beta = 1 / horizon per row.

    Args:
        coef: >= 0, the current coefficient.
        target: > 0, the desired divergence, in nats per row.
        horizon: > 0, in rows; the larger, the slower the coefficient changes.
        max_error: > 0; the paper has 0.2.

    Raise ValueError for a number outside of these ranges, including NaN.
    """

    coef: float
    target: float
    horizon: float
    max_error: float

    def __post_init__(self) -> None:
        above = (self.target, self.horizon, self.max_error)
        if not all(number > 0.0 for number in above) or not self.coef >= 0.0:
            raise ValueError(f"{self}: target, horizon and max_error are above 0, coef is not below it")

    def updated(self, kl: float, num_rows: int) -> AdaptiveKl:
        """Return the state after `num_rows` rows whose mean divergence (summed over a row's tokens) was `kl` nats.

        Raise ValueError if `kl` is NaN.
        """
        if math.isnan(kl):
            raise ValueError("the divergence is NaN")
        error = min(max(kl / self.target - 1.0, -self.max_error), self.max_error)
        return replace(self, coef=self.coef * (1.0 + error * num_rows / self.horizon))
