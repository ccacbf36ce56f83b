"""Gradients of policy and critic at every optimizer step, against losses written out on rows without padding."""

from __future__ import annotations

import pytest

from tests.support.ppo_by_hand import unpadded
from tests.trainers.ppo.ppo_losses_by_hand import assert_gradients, losses_by_hand


class TestGradients:
    """Of both models at every optimizer step, against autograd through losses written out on rows without padding."""

    @pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo", "bnpo"])
    def test_equal_those_of_the_losses_written_out(self, steps, loss_type: str) -> None:
        taken = steps(
            f"trainer.args.loss_type={loss_type}",
            "trainer.args.per_device_train_batch_size=4",
            "trainer.args.gradient_accumulation_steps=2",
            "trainer.args.steps_per_generation=4",
            "trainer.args.num_iterations=2",
            "trainer.args.max_steps=4",
            "trainer.args.learning_rate=0.03",
            "critic.learning_rate=0.01",
            "critic.value_clip=0.05",
            "critic.loss_coef=0.7",
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
