"""Clipping with two bounds, and values of later epochs, against the definitions row by row."""

from __future__ import annotations

import statistics

import pytest
import torch

from tests.support.ppo_by_hand import logps_of, unpadded, values_of
from tests.support.tolerances import MODEL


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
