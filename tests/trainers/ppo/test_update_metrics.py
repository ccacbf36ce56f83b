"""The metrics of an update, by hand: ratios of four tokens, three of them the policy's own."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlhf_cli.trainers.ppo.ppo_mixin import PpoMixin
from tests.support.tolerances import ARITHMETIC


class Alone(PpoMixin):
    """Has what is read of a trainer on one rank."""

    _mode = "train"  # type: ignore[assignment]

    def __init__(self, ratios: list[float], epsilon_low: float, epsilon_high: float) -> None:
        self._latest_logps = torch.tensor([ratios]).log()
        self.epsilon_low, self.epsilon_high = epsilon_low, epsilon_high
        self.current_gradient_accumulation_steps = 2
        self.accelerator: Any = SimpleNamespace(gather=lambda one: one, reduce=lambda one, reduction: one)
        self._metrics: Any = {"train": defaultdict(list)}
        self._metrics["train"]["entropy"] = [0.5]

    def _sum_over_ranks(self, sums: torch.Tensor) -> torch.Tensor:
        return sums


def logged(ratios: list[float], epsilon_low: float = 0.1, epsilon_high: float = 0.3) -> dict[str, float]:
    trainer = Alone(ratios, epsilon_low, epsilon_high)
    inputs = {
        "completion_mask": torch.ones(1, 4),
        "tool_mask": torch.tensor([[1, 1, 0, 1]]),
        "old_per_token_logps": torch.zeros(1, 4),
    }
    trainer._log_update(torch.tensor(0.25), inputs)
    return {name: values[-1] for name, values in trainer._metrics["train"].items()}


def test_by_hand() -> None:
    """Ratios 0.85, 1.2 and 1.4, and a tool's 9: the mean is 1.15, and outside of [0.9, 1.3] are the first and last."""
    found = logged([0.85, 1.2, 9.0, 1.4])
    assert found["ppo/ratio_mean"] == pytest.approx(3.45 / 3, **ARITHMETIC)
    assert found["ppo/ratio_max"] == pytest.approx(1.4, **ARITHMETIC)
    assert found["ppo/clip_fraction"] == pytest.approx(2 / 3, **ARITHMETIC)
    assert found["ppo/policy_loss"] == pytest.approx(0.5)  # of a step of two micro-batches
    assert found["ppo/entropy"] == 0.5


@pytest.mark.parametrize(
    ("low", "high", "share"), [(0.3, 0.1, 2 / 3), (0.3, 0.3, 1 / 3), (0.1, 0.5, 1 / 3), (0.3, 0.5, 0)]
)
def test_below_and_above_have_a_bound_each(low: float, high: float, share: float) -> None:
    assert logged([0.85, 1.2, 9.0, 1.4], low, high)["ppo/clip_fraction"] == pytest.approx(share, **ARITHMETIC)


def test_a_policy_that_has_not_moved() -> None:
    found = logged([1.0, 1.0, 1.0, 1.0])
    assert (found["ppo/ratio_max"], found["ppo/clip_fraction"], found["ppo/approx_kl_k3_old_new"]) == (1.0, 0.0, 0.0)
