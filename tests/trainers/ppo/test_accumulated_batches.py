"""Final weights of runs that ought to be one and the same, and values of later epochs."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.ppo_by_hand import logps_of, unpadded, values_of
from tests.support.tolerances import MODEL


class TestWeights:
    """Final weights of runs that ought to be one and the same."""

    @staticmethod
    def end(trainer: Any) -> Tensor:
        models = (trainer.model, trainer.critic.model)
        return torch.cat([one.detach().flatten().double() for model in models for one in model.parameters()])

    @pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo"])
    def test_do_not_depend_on_how_a_batch_is_accumulated(self, rollouts, loss_type: str) -> None:
        settings = (f"trainer.args.loss_type={loss_type}", "trainer.args.num_iterations=2", "trainer.args.max_steps=4")
        ends = []
        for rows, accumulation in ((8, 1), (4, 2)):
            run = rollouts(
                *settings,
                f"trainer.args.per_device_train_batch_size={rows}",
                f"trainer.args.gradient_accumulation_steps={accumulation}",
                f"trainer.args.steps_per_generation={2 * accumulation}",
                name=f"rows-{rows}",
            )
            ends.append((run.outputs[0], self.end(run.trainer)))
        for output, end in ends[1:]:
            assert torch.equal(output["completion_ids"], ends[0][0]["completion_ids"])
            # A hundredth of one of the four steps: Adam makes each about as long as the learning rate, 1e-3.
            torch.testing.assert_close(end, ends[0][1], atol=1e-5, rtol=0)

    def test_control_other_minibatches_give_others(self, rollouts) -> None:
        ends = []
        for rows in (8, 4):
            settings = ("trainer.args.num_iterations=2", "trainer.args.max_steps=4")
            run = rollouts(*settings, f"trainer.args.per_device_train_batch_size={rows}", name=f"rows-{rows}")
            ends.append(self.end(run.trainer))
        assert (ends[0] - ends[1]).abs().max() > 1e-4


def test_clipping_has_a_bound_of_its_own_above(steps, prepared) -> None:
    """`epsilon_high` is not `epsilon` (DAPO, arXiv 2503.14476): the share of ratios below 0.95 or above 1.4."""
    bounds = ("trainer.args.epsilon=0.05", "trainer.args.epsilon_high=0.4", "trainer.args.learning_rate=0.03")
    taken = steps(*bounds, "trainer.args.num_iterations=2", "trainer.args.max_steps=4")
    events = [event for event in prepared[0].state.log_history if "ppo/clip_fraction" in event]
    differs = []
    for step, event in zip(taken, events, strict=True):
        (batch,) = step.batches
        ratios = []
        for row, (prompt, completion) in enumerate(unpadded(batch)):
            old = batch["old_per_token_logps"][row, : len(completion)].double()
            ratios += (logps_of(step.policy, prompt, completion) - old).exp().tolist()
        assert event["ppo/clip_fraction"] == pytest.approx(statistics.fmean(not 0.95 <= one <= 1.4 for one in ratios))
        differs.append(any(1.05 < one <= 1.4 for one in ratios) and any(one > 1.4 for one in ratios))
    assert any(differs)


def test_later_epochs_have_new_values_and_clip_around_the_rollouts(steps, prepared) -> None:
    taken = steps(
        "trainer.args.steps_per_generation=1",
        "trainer.args.num_iterations=3",
        "trainer.args.max_steps=3",
        "critic.learning_rate=0.05",
        "critic.value_clip=0.1",
    )
    batches = [step.batches[0] for step in taken]
    for name in ("rollout_values", "returns", "advantages", "completion_ids"):
        assert all(torch.equal(batch[name], batches[0][name]) for batch in batches)
    expected = []
    for step, batch in zip(taken, batches, strict=True):
        losses, clipped = [], []
        for row, (prompt, completion) in enumerate(unpadded(batch)):
            values = values_of(step.critic, prompt, completion)[:-1].tolist()
            for token, value in enumerate(values):
                old, target = batch["rollout_values"][row, token].item(), batch["returns"][row, token].item()
                held = old + min(max(value - old, -0.1), 0.1)
                losses.append(0.5 * max((value - target) ** 2, (held - target) ** 2))
                clipped.append((held - target) ** 2 > (value - target) ** 2)
        expected.append((statistics.fmean(losses), statistics.fmean(clipped)))
    events = [event for event in prepared[0].state.log_history if "ppo/value_loss" in event]
    assert [event["ppo/value_loss"] for event in events] == pytest.approx([one[0] for one in expected], **MODEL)
    assert [event["ppo/value_clip_fraction"] for event in events] == pytest.approx([one[1] for one in expected])
    assert expected[0][1] == 0.0
    assert expected[2][1] > 0.1
