"""The estimators against torch's exact divergence of two distributions; the controller by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

from rlhf_cli.numerics.ppo_losses import AdaptiveKl, k1, k3
from rlhf_cli.tables.kl_forms import MAX_RELATIVE_ERROR
from tests.support.tolerances import ARITHMETIC

P = Categorical(torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64))
NEAR = Categorical(torch.tensor([0.12, 0.19, 0.31, 0.38], dtype=torch.float64))
FAR = Categorical(torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64))


def estimates(estimator: Callable[[Tensor, Tensor], Tensor], p: Categorical, q: Categorical) -> tuple[float, float]:
    """Mean over 400 000 tokens of p, and its standard error."""
    drawn = torch.multinomial(p.probs, 400_000, replacement=True, generator=torch.Generator().manual_seed(0))
    found = estimator(p.log_prob(drawn), q.log_prob(drawn))
    return float(found.mean()), float(found.std()) / math.sqrt(found.numel())


@pytest.mark.parametrize("q", [NEAR, FAR], ids=["near", "far"])
@pytest.mark.parametrize("estimator", [k1, k3])
def test_unbiased(estimator: Callable[[Tensor, Tensor], Tensor], q: Categorical) -> None:
    exact = float(kl_divergence(P, q))
    mean, error = estimates(estimator, P, q)
    assert abs(mean - exact) < 5 * error


def test_direction() -> None:
    """KL(p || q), not KL(q || p): the two differ by far for these."""
    q = Categorical(torch.tensor([0.01, 0.09, 0.3, 0.6], dtype=torch.float64))
    forward, backward = float(kl_divergence(P, q)), float(kl_divergence(q, P))
    for estimator in (k1, k3):
        mean, error = estimates(estimator, P, q)
        assert abs(mean - forward) < 5 * error
        assert abs(mean - backward) > 20 * error


def test_k3_varies_less_than_k1_near() -> None:
    assert estimates(k3, P, NEAR)[1] < 0.2 * estimates(k1, P, NEAR)[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_k3_is_never_negative(dtype: torch.dtype) -> None:
    """Nor for ratios near 1, where exp(x) - 1 - x rounds below 0; k1 is, for one sample."""
    steps = torch.logspace(-12, 1, 5001, dtype=torch.float64)
    logq = torch.cat([steps, -steps, torch.zeros(1)]).to(dtype)
    logp = torch.zeros_like(logq)
    assert (k3(logp, logq) >= 0).all()
    assert (logq.exp() - 1 - logq < 0).any()  # control: as it is written
    assert (k1(logp, logq) < 0).any()


def test_by_hand() -> None:
    logp, logq = torch.tensor([math.log(0.5)]), torch.tensor([math.log(0.25)])
    assert k1(logp, logq).item() == pytest.approx(math.log(2), **ARITHMETIC)
    assert k3(logp, logq).item() == pytest.approx(0.5 - 1 + math.log(2), **ARITHMETIC)


@pytest.mark.parametrize(
    ("kl", "coef"),
    [
        (6.0, 0.1),  # on target
        (6.6, 0.1 * (1 + 0.1 * 256 / 10_000)),  # 10 % above it
        (5.4, 0.1 * (1 - 0.1 * 256 / 10_000)),
        (60.0, 0.1 * (1 + 0.2 * 256 / 10_000)),  # held at 20 %
        (math.inf, 0.1 * (1 + 0.2 * 256 / 10_000)),
        (-1.0, 0.1 * (1 - 0.2 * 256 / 10_000)),
    ],
)
def test_controller_by_hand(kl: float, coef: float) -> None:
    before = AdaptiveKl(coef=0.1, target=6.0, horizon=10_000, max_error=MAX_RELATIVE_ERROR)
    after = before.updated(kl, 256)
    assert after.coef == pytest.approx(coef, rel=1e-12)
    assert (after.target, after.horizon, before.coef) == (6.0, 10_000, 0.1)


def test_controller_finds_the_coefficient_that_meets_the_target() -> None:
    """A policy whose divergence is 1 / coef: the target 4 is met at 0.25, from either side."""
    for start in (0.01, 5.0):
        state = AdaptiveKl(coef=start, target=4.0, horizon=1000, max_error=0.2)
        for _ in range(1000):
            state = state.updated(1.0 / state.coef, 64)
        assert state.coef == pytest.approx(0.25, rel=1e-6)


def test_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        AdaptiveKl(0.1, 6.0, 1000, 0.2).updated(math.nan, 1)
    for wrong in ((-0.1, 6.0, 1000.0), (0.1, 0.0, 1000.0), (0.1, 6.0, 0.0), (math.nan, 6.0, 1000.0)):
        with pytest.raises(ValueError, match="above 0"):
            AdaptiveKl(*wrong, max_error=0.2)
    with pytest.raises(ValueError, match="above 0"):
        AdaptiveKl(0.1, 6.0, 1000.0, max_error=0.0)
    assert AdaptiveKl(0.0, 6.0, 1000.0, 0.2).updated(9.0, 64).coef == 0.0  # no penalty stays none
