"""PPO's losses written out on rows without padding, and their gradients through plain models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.support.float64 import no_float32
from tests.support.ppo_by_hand import LIMIT, logps_of, unpadded, values_of
from tests.support.tolerances import as_one, assert_equal


@dataclass
class Step:
    """One optimizer step: the micro-batches of its window, both models before it, and their gradients."""

    batches: list[dict[str, Any]]
    round_tokens: int
    policy: Any
    critic: Any
    policy_gradient: dict[str, Tensor]
    critic_gradient: dict[str, Tensor]


def gradient_of(model: Any) -> dict[str, Tensor]:
    return {name: one.grad.detach().clone().double() for name, one in model.named_parameters()}


def token_losses(
    step: Step, batch: dict[str, Any], beta: float, clip: float | None, *, is_corrected: bool = True
) -> list[tuple[Tensor, Tensor]]:
    """(policy losses, critic losses) of the tokens, one list per row. `is_corrected`: the ratio weighs the KL."""
    found = []
    for row, (prompt, completion) in enumerate(unpadded(batch)):
        if not completion:
            found.append((torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)))
            continue

        def given(name: str, row: int = row, count: int = len(completion)) -> Tensor:
            return batch[name][row, :count].double()

        logps = logps_of(step.policy, prompt, completion)
        old = given("old_per_token_logps") if "old_per_token_logps" in batch else logps.detach()
        ratio, advantages = (logps - old).exp(), given("advantages")
        policy = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        if beta:
            difference = given("ref_per_token_logps") - logps
            weight = ratio if is_corrected else 1.0
            policy = policy + beta * weight * (difference.exp() - difference - 1)
        values = values_of(step.critic, prompt, completion)[:-1]
        before, returns = given("rollout_values"), given("returns")
        critic = (values - returns) ** 2
        if clip is not None:
            critic = torch.maximum(critic, (before + (values - before).clamp(-clip, clip) - returns) ** 2)
        found.append((policy, 0.5 * critic))
    return found


@no_float32()
def losses_by_hand(
    step: Step,
    loss_type: str,
    *,
    num_steps: int,
    beta: float = 0.0,
    clip: float | None = 0.2,
    is_corrected: bool = True,
) -> list[Tensor]:
    """The policy's and the critic's loss of a whole accumulation window, the latter before its coefficient."""
    batches = [token_losses(step, batch, beta, clip, is_corrected=is_corrected) for batch in step.batches]
    found = []
    for which in (0, 1):
        rows = [[row[which] for row in batch] for batch in batches]
        every = [row for batch in rows for row in batch]
        if loss_type == "grpo":
            found.append(torch.stack([row.mean() for row in every]).mean())
        elif loss_type == "dr_grpo":
            found.append(torch.cat(every).sum() / (len(every) * LIMIT))
        elif loss_type == "bnpo" and which == 0:
            found.append(torch.stack([torch.cat(batch).mean() for batch in rows]).mean())
        else:
            found.append(torch.cat(every).sum() / (step.round_tokens * len(batches) / num_steps))
    return found


def assert_gradients(step: Step, losses: list[Tensor], coef: float) -> None:
    policy, critic = losses
    policy.backward()
    (coef * critic).backward()
    for model, found in ((step.policy, step.policy_gradient), (step.critic, step.critic_gradient)):
        expected = gradient_of(model)
        assert found.keys() == expected.keys()
        assert as_one(expected.values()).norm() > 1e-4
        assert_equal(as_one(found.values()), as_one(expected[name] for name in found))
