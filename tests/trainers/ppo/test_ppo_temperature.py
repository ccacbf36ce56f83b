"""PPO at a temperature other than 1: ratio, KL penalty and advantages are those of softmax(logits / temperature)."""

from __future__ import annotations

import statistics

import pytest
import torch

from tests.support.ppo_by_hand import assert_rows, raw_advantages, total_of, whitened
from tests.support.tolerances import MODEL
from tests.trainers.ppo.ppo_losses_by_hand import token_losses

HOT = "trainer.args.temperature=1.7"


def test_the_kl_penalty_and_what_is_made_of_it(rollouts) -> None:
    """Each token's reward loses coef (log p - log q), p and q both the softmax of logits / 1.7: that is the divergence
    of what is sampled. The rows by hand (`rows_of`) take logits / temperature in float64 from models that neither TRL
    nor we have touched; k1 and k3 are their means over tokens.
    """
    run = rollouts(HOT, "kl.where=reward", "kl.coef=0.3", "trainer.args.num_iterations=2")
    ((rows,), (output,), event) = run.rows, run.outputs, run.events[0]
    assert_rows(output["old_per_token_logps"] * output["completion_mask"], [row.logps for row in rows])
    raw = raw_advantages(rows, [total_of(row.completion) for row in rows], coef=0.3)
    assert_rows(output["advantages"], whitened(raw))
    kls = torch.tensor([kl for row in rows for kl in row.kl], dtype=torch.float64)
    # Old and new log-probabilities are at the same temperature: the ratio of a policy that has not moved is 1.
    assert event["ppo/ratio_max"] == pytest.approx(1.0, **MODEL)
    assert event["kl/k1_policy_ref"] == pytest.approx(float(kls.mean()), **MODEL)
    assert event["kl/k3_policy_ref"] == pytest.approx(float(((-kls).exp() - 1 + kls).mean()), **MODEL)
    assert event["kl/k1_policy_ref_per_row"] == pytest.approx(statistics.fmean(sum(row.kl) for row in rows), **MODEL)


def test_the_loss_of_the_second_epoch(steps) -> None:
    """After an update the ratio is exp(log p_new - log p_old), at the temperature both: by hand, of plain models."""
    found = steps(HOT, "kl.where=none", "trainer.args.num_iterations=2", "trainer.args.learning_rate=0.01")
    step = found[1]
    (batch,) = step.batches
    of_rows = token_losses(step, batch, 0.0, None, temperature=1.7)
    tokens = step.round_tokens / 2  # two steps take a round
    loss = torch.cat([policy for policy, _ in of_rows]).sum() / tokens
    loss.backward()
    gradient = {name: one.grad for name, one in step.policy.named_parameters()}
    largest = max(float(one.abs().max()) for one in gradient.values())
    assert largest > 1e-4
    for name, one in gradient.items():
        torch.testing.assert_close(step.policy_gradient[name], one, atol=2e-5 * largest, rtol=1e-4)
