"""The clipped value loss case by case, by its gradient, and against the numbers of TRL 1.12's PPOTrainer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from rlhf_cli.numerics.ppo_losses import value_losses
from tests.support.tolerances import ARITHMETIC, ARITHMETIC_OF_TENSORS


@pytest.mark.parametrize(
    ("value", "old", "target", "loss", "is_clipped"),
    [
        (1.1, 1.0, 2.0, 0.405, False),  # within the clip: (0.9)^2 / 2
        (1.5, 1.0, 2.0, 0.32, True),  # went towards R by more than 0.2: counts as at 1.2
        (0.5, 1.0, 2.0, 1.125, False),  # went away from R: nothing is spared
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
    values, returns = torch.randn(3, 4), torch.randn(3, 4)
    losses, is_clipped = value_losses(values, values - 10.0, returns, None)
    torch.testing.assert_close(losses, torch.nn.functional.mse_loss(values, returns, reduction="none") / 2)
    assert is_clipped.dtype == torch.bool
    assert not is_clipped.any()
    clipped = value_losses(values, values - 10.0, returns, 0.2)[0]
    assert (clipped > losses + 1).any()  # control: the clip is felt on these numbers


def test_no_gradient_where_clipped() -> None:
    values = torch.tensor([1.5, 1.1, 0.5], requires_grad=True)
    losses, is_clipped = value_losses(values, torch.ones(3), torch.full((3,), 2.0), 0.2)
    losses.sum().backward()
    assert is_clipped.tolist() == [True, False, False]
    torch.testing.assert_close(values.grad, torch.tensor([0.0, -0.9, -1.5]))


def test_trl() -> None:
    """TRL 1.12 halves after the mean, over a row's tokens and the position after them (see test_gae)."""
    found = json.loads(Path(__file__).with_name("trl_1_12_ppo.json").read_text())
    critic = {name: torch.tensor(numbers) for name, numbers in found["critic"].items()}
    given = critic["vpred"], critic["mb_values"], critic["mb_return"]
    losses, is_clipped = value_losses(*given, found["cliprange_value"])
    torch.testing.assert_close(losses, critic["vf_loss_max"] / 2, **ARITHMETIC_OF_TENSORS)
    torch.testing.assert_close(losses[critic["mask"]].mean(), critic["vf_loss"], **ARITHMETIC_OF_TENSORS)
    torch.testing.assert_close(is_clipped[critic["mask"]].float().mean(), critic["vf_clipfrac"])
    assert 0.1 < critic["vf_clipfrac"] < 0.9
    unclipped, _ = value_losses(*given, None)
    assert abs(unclipped[critic["mask"]].mean() - critic["vf_loss"]) > 0.01


@pytest.mark.parametrize("clip", [0.0, -0.2, float("nan")])
def test_refused(clip: float) -> None:
    with pytest.raises(ValueError, match="clip is"):
        value_losses(torch.zeros(1), torch.zeros(1), torch.zeros(1), clip)
