"""Gradients of policy and critic at every optimizer step, against losses written out on rows without padding."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlhf_cli.trainers.ppo.ppo_mixin import PpoMixin
from tests.support.ppo_by_hand import unpadded
from tests.support.tolerances import ARITHMETIC
from tests.trainers.ppo.ppo_losses_by_hand import assert_gradients, losses_by_hand


class TestGradients:
    """Of both models at every optimizer step, against autograd through losses written out on rows without padding."""

    @pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo", "bnpo"])
    def test_equal_those_of_the_losses_written_out(self, steps, loss_type: str) -> None:
        taken = steps(
            *(f"trainer.args.loss_type={loss_type}", "trainer.args.per_device_train_batch_size=4"),
            *("trainer.args.gradient_accumulation_steps=2", "trainer.args.steps_per_generation=4"),
            *("trainer.args.num_iterations=2", "trainer.args.max_steps=4", "trainer.args.learning_rate=0.03"),
            *("critic.learning_rate=0.01", "critic.value_clip=0.05", "critic.loss_coef=0.7"),
        )
        assert len(taken) == 4
        for step in taken:
            assert len(step.batches) == 2
            losses = losses_by_hand(step, loss_type, num_steps=4, clip=0.05)
            unclipped = losses_by_hand(step, loss_type, num_steps=4, clip=None)
            assert_gradients(step, losses, 0.7)
        assert losses[1] != unclipped[1]  # control: by the last step the clip is at work

    @pytest.mark.parametrize("is_corrected", [True, False])
    def test_with_the_kl_in_the_loss(self, steps, is_corrected: bool) -> None:
        """TRL weighs k3 with the ratio to the rollout's policy by default (arXiv 2512.02556)."""
        settings = () if is_corrected else ("trainer.args.use_bias_correction_kl=false",)
        repeated = ("trainer.args.num_iterations=2", "trainer.args.max_steps=3", "trainer.args.learning_rate=0.03")
        for step in steps("kl.where=loss", "kl.coef=0.3", *repeated, *settings):
            losses = losses_by_hand(step, "dapo", num_steps=2, beta=0.3, is_corrected=is_corrected)
            assert_gradients(step, losses, 0.5)
        other = losses_by_hand(step, "dapo", num_steps=2, beta=0.3, is_corrected=not is_corrected)
        assert abs(losses[0] - other[0]) > 1e-4

    def test_with_excluded_rows(self, steps) -> None:
        """`round_tokens` counts what is left: the same holds with rows that are not there."""
        taken = steps("truncation=exclude", "trainer.args.num_iterations=2")
        lengths = [len(completion) for step in taken for batch in step.batches for _, completion in unpadded(batch)]
        assert 0 in lengths
        for step in taken:
            assert_gradients(step, losses_by_hand(step, "dapo", num_steps=2), 0.5)

    def test_a_row_to_which_nothing_applies_has_none(self, steps) -> None:
        rewards = ("++rewards.odd_only={fn: './mine.py:odd_only'}",)
        (first, _) = steps(rewards=rewards)
        ids = [completion for batch in first.batches for _, completion in unpadded(batch)]
        assert any(not completion for completion in ids)
        assert all(completion[0] % 2 for completion in ids if completion)
        assert_gradients(first, losses_by_hand(first, "dapo", num_steps=2), 0.5)


# The metrics of an update, by hand: ratios of four tokens, three of them the policy's own.


class Alone(PpoMixin):
    """Has what is read of a trainer; another rank has a ratio of 1."""

    _mode = ""  # type: ignore[assignment]

    def __init__(self, ratios: list[float], epsilon_low: float, epsilon_high: float, mode: str) -> None:
        self._mode = mode
        self._latest_logps = torch.tensor([ratios]).log()
        self.epsilon_low, self.epsilon_high = epsilon_low, epsilon_high
        self.current_gradient_accumulation_steps = 2
        self.accelerator: Any = SimpleNamespace(reduce=lambda one, reduction: one, sync_gradients=True)
        self.accelerator.gather = lambda own: torch.cat([own, torch.ones(1)])
        self._metrics: Any = {mode: defaultdict(list)}
        self._metrics[mode]["entropy"] = [0.5]

    def _sum_over_ranks(self, sums: torch.Tensor) -> torch.Tensor:
        return sums


def logged(ratios: list[float], low: float = 0.1, high: float = 0.3, mode: str = "train") -> dict[str, float]:
    trainer = Alone(ratios, low, high, mode)
    inputs = {
        "completion_mask": torch.ones(1, 4),
        "tool_mask": torch.tensor([[1, 1, 0, 1]]),
        "old_per_token_logps": torch.zeros(1, 4),
    }
    trainer._log_update(torch.tensor(0.25), inputs)
    return {name: values[-1] for name, values in trainer._metrics[mode].items()}


def test_by_hand() -> None:
    """Ratios 0.85, 1.2 and 1.4, and a tool's 9: the mean is 1.15, and outside of [0.9, 1.3] are the first and last."""
    found = logged([0.85, 1.2, 9.0, 1.4])
    assert found["ppo/ratio_mean"] == pytest.approx(3.45 / 3, **ARITHMETIC)
    assert found["ppo/ratio_max"] == pytest.approx(1.4, **ARITHMETIC)
    assert found["ppo/clip_fraction"] == pytest.approx(2 / 3, **ARITHMETIC)
    assert found["ppo/policy_loss"] == pytest.approx(0.5)  # of a step of two micro-batches
    assert logged([0.85, 1.2, 9.0, 1.4], mode="eval")["ppo/policy_loss"] == pytest.approx(0.25)
    assert found["ppo/entropy"] == 0.5


def test_a_window_of_micro_batches_is_one_minibatch() -> None:
    """By hand: 3 actions with ratios 1, 2 and 3, then one with 5, then none; the log averages the three entries."""
    trainer = Alone([1.0, 2.0, 3.0], 0.5, 0.5, "train")
    for ratios, in_loss in (([1, 2, 3], [1, 1, 1]), ([5, 9, 9], [1, 0, 0]), ([9, 9, 9], [0, 0, 0])):
        counted, is_last = torch.tensor([in_loss]), not any(in_loss)
        trainer._latest_logps = torch.tensor([ratios]).log()
        trainer.accelerator.sync_gradients = is_last
        inputs = {"completion_mask": counted, "old_per_token_logps": torch.zeros(1, 3), "in_window": [1.0, 4 / 3]}
        trainer._log_update(torch.tensor(0.25), inputs)
    found = trainer._metrics["train"]
    assert sum(found["ppo/ratio_mean"]) / 3 == pytest.approx(11 / 4, **ARITHMETIC)
    assert sum(found["ppo/clip_fraction"]) / 3 == pytest.approx(3 / 4, **ARITHMETIC)
    assert found["ppo/ratio_max"] == [pytest.approx(5.0, **ARITHMETIC)]


@pytest.mark.parametrize(
    ("low", "high", "share"), [(0.3, 0.1, 2 / 3), (0.3, 0.3, 1 / 3), (0.1, 0.5, 1 / 3), (0.3, 0.5, 0)]
)
def test_below_and_above_have_a_bound_each(low: float, high: float, share: float) -> None:
    assert logged([0.85, 1.2, 9.0, 1.4], low, high)["ppo/clip_fraction"] == pytest.approx(share, **ARITHMETIC)
