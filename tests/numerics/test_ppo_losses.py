"""The clipped value loss case by case, by its gradient, and against the numbers of TRL 1.12's PPOTrainer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

from rlhf_cli.numerics.ppo_losses import adapted_coef, k1, k3, value_losses
from rlhf_cli.tables.trl_values import MAX_RELATIVE_KL_ERROR
from tests.support.tolerances import ARITHMETIC, assert_close, assert_equal


@pytest.mark.parametrize(
    ("value", "old", "target", "loss", "is_clipped"),
    [
        (1.1, 1.0, 2.0, 0.405, False),  # within the clip: (0.9)^2 / 2
        (1.5, 1.0, 2.0, 0.32, True),  # went towards R by more than 0.2: counts as at 1.2
        (0.5, 1.0, 2.0, 1.125, False),  # went away from R: no token is spared
        (3.0, 1.0, 2.0, 0.5, False),  # past R, (1)^2 / 2, beats (0.8)^2 / 2 of the clipped one
        (0.5, 1.0, 0.0, 0.32, True),  # towards R from above
        (1.0, 1.0, 1.0, 0.0, False),
    ],
)
def test_by_hand(value: float, old: float, target: float, loss: float, is_clipped: bool) -> None:
    losses, clipped = value_losses(torch.tensor([value]), torch.tensor([old]), torch.tensor([target]), 0.2)
    assert losses.item() == pytest.approx(loss, **ARITHMETIC)
    assert clipped.tolist() == [is_clipped]


def test_without_a_clip_it_is_half_the_squared_error() -> None:
    values, returns = torch.randn(2, 3, 4, dtype=torch.float64)
    losses, is_clipped = value_losses(values, values - 10.0, returns, None)
    assert_equal(losses, torch.nn.functional.mse_loss(values, returns, reduction="none") / 2)
    assert is_clipped.dtype == torch.bool
    assert not is_clipped.any()
    clipped = value_losses(values, values - 10.0, returns, 0.2)[0]
    assert (clipped > losses + 1).any()  # control: the clip is felt on these numbers


def test_no_gradient_where_clipped() -> None:
    values = torch.tensor([1.5, 1.1, 0.5], requires_grad=True)
    losses, is_clipped = value_losses(values, torch.ones(3), torch.full((3,), 2.0), 0.2)
    losses.sum().backward()
    assert is_clipped.tolist() == [True, False, False]
    assert_close(values.grad, torch.tensor([0.0, -0.9, -1.5]))


def test_trl() -> None:
    """TRL 1.12 halves after the mean, over a row's tokens and the position after them (see test_gae)."""
    found = json.loads(Path(__file__).with_name("trl_1_12_ppo.json").read_text())
    critic = {name: torch.tensor(numbers) for name, numbers in found["critic"].items()}
    given = critic["vpred"], critic["mb_values"], critic["mb_return"]
    losses, is_clipped = value_losses(*given, found["cliprange_value"])
    assert_close(losses, critic["vf_loss_max"] / 2)
    assert_close(losses[critic["mask"]].mean(), critic["vf_loss"])
    assert_close(is_clipped[critic["mask"]].float().mean(), critic["vf_clipfrac"])
    assert 0.1 < critic["vf_clipfrac"] < 0.9
    unclipped, _ = value_losses(*given, None)
    assert abs(unclipped[critic["mask"]].mean() - critic["vf_loss"]) > 0.01


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_k3_is_never_negative(dtype: torch.dtype) -> None:
    """Nor for ratios near 1, where exp(x) - 1 - x rounds below 0; k1 is, for one sample."""
    steps = torch.logspace(-12, 1, 5001, dtype=torch.float64)
    logq = torch.cat([steps, -steps, torch.zeros(1)]).to(dtype)
    logp = torch.zeros_like(logq)
    assert (k3(logp, logq) >= 0).all()
    assert (logq.exp() - 1 - logq < 0).any()  # control: as it is written
    assert (k1(logp, logq) < 0).any()


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
    found = adapted_coef(0.1, kl, 256, target=6.0, horizon=10_000, max_error=MAX_RELATIVE_KL_ERROR)
    assert found == pytest.approx(coef, rel=1e-12)
