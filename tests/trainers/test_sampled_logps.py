"""Completions that another engine sampled, with its own log-probabilities: the loss is weighed by how far they are off.

TRL asks vLLM for them. In its place stands an engine that gives completions and log-probabilities of our choice.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import trl.trainer.grpo_trainer
from torch import Tensor
from transformers import AutoModelForCausalLM

from rlhf_cli.plan import rollout_server_plan
from rlhf_cli.plan.checks import machine_checks
from rlhf_cli.trainers.reward_mixin import RewardMixin
from tests.support.ppo_by_hand import DROP, EOS, LIMIT, PLAIN, REWARDS, logps_of, plain, stir, unpadded
from tests.support.small_runs import PPO_SMALL
from tests.support.tolerances import MODEL

RATIOS = (0.25, 0.8, 1.0, 1.5, 4.0)
LOWEST, HIGHEST = 0.5, 2.0
BETA = 0.1
WORDS = (
    *(*DROP, *PLAIN, f"trainer.args.max_completion_length={LIMIT}", "truncation=exclude"),
    *("trainer.args.steps_per_generation=2", "trainer.args.num_iterations=2", "trainer.args.max_steps=2"),
    *("trainer.args.gradient_accumulation_steps=2", "trainer.args.learning_rate=0.02"),
    *("launch.rollout=vllm", f"trainer.args.vllm_importance_sampling_clip_max={HIGHEST}"),
    f"trainer.args.vllm_importance_sampling_clip_min={LOWEST}",
)
"""A round is two micro-batches, which are one optimizer step, twice: the second is taken by another policy."""

TRAINERS = {"grpo": (f"trainer.args.beta={BETA}",), "ppo": (*PPO_SMALL[:2], "kl.where=loss", f"kl.coef={BETA}")}


def ratio_of(completion: list[int], place: int) -> float | None:
    """What the trainer's probability of a token is to be, over that of the engine; None: the engine has none."""
    draw = (sum(completion) + 3 * place) % (len(RATIOS) + 1)
    return RATIOS[draw] if draw < len(RATIOS) else None


class Engine:
    """Stands for TRL's VLLMGeneration: ragged completions, and log-probabilities that are off by `ratio_of`."""

    def __init__(self, model: Any, **named: Any) -> None:
        self.model = model

    def sync_weights(self) -> None:
        """The weights are the trainer's own."""

    def generate(self, prompts: list[list[int]], **named: Any) -> tuple[Any, ...]:
        draw = random.Random(1)
        model, completions, logps = plain(self.model, AutoModelForCausalLM), [], []
        for prompt in prompts:
            is_cut = draw.random() < 0.3
            length = LIMIT if is_cut else draw.randint(1, LIMIT)
            ids = [draw.randrange(40, 200) for _ in range(length)]
            completions.append(ids if is_cut else [*ids[:-1], EOS])
            with torch.no_grad():
                own = logps_of(model, prompt, completions[-1])
            ratios = [ratio_of(completions[-1], place) for place in range(length)]
            off = [
                None if ratio is None else float(one) - float(torch.tensor(ratio).log())
                for one, ratio in zip(own, ratios, strict=True)
            ]
            logps.append([[one] for one in off])
        return prompts, completions, logps, None


@dataclass
class Step:
    """An optimizer step: the policy before it, its micro-batches, their losses added and the gradient of that."""

    policy: Any
    batches: list[dict[str, Any]]
    loss: float
    gradient: dict[str, Tensor]


@pytest.fixture
def steps(train, before_training, workplace, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Step]]:
    """`steps(trainer, mode, *overrides)`: the two optimizer steps of one round."""
    (workplace / "mine.py").write_text(REWARDS)
    monkeypatch.setattr(trl.trainer.grpo_trainer, "VLLMGeneration", Engine)
    monkeypatch.setattr(rollout_server_plan, "vllm_problems", lambda *_: [])
    # vLLM is for GPUs, and this one is none
    monkeypatch.setattr(machine_checks, "_runs_on_cpu", lambda _: False)
    monkeypatch.setattr(machine_checks, "may_have_other_gpus", lambda: True)
    before_training(lambda trainer: stir(trainer.model, 0.05, seed=1))
    taken: list[Step] = []
    compute_loss = RewardMixin._compute_loss

    def spied(self: Any, model: Any, inputs: dict[str, Any]) -> Tensor:
        loss = compute_loss(self, model, inputs)
        named = dict(self.model.named_parameters())
        gradient = torch.autograd.grad(loss, list(named.values()), retain_graph=True)
        if not taken or len(taken[-1].batches) == 2:
            nothing = {name: torch.zeros_like(one) for name, one in named.items()}
            taken.append(Step(plain(self.model, AutoModelForCausalLM), [], 0.0, nothing))
        step = taken[-1]
        step.batches.append(inputs)
        step.loss += loss.item()
        step.gradient = {name: step.gradient[name] + one for name, one in zip(named, gradient, strict=True)}
        return loss

    monkeypatch.setattr(RewardMixin, "_compute_loss", spied)

    def run(trainer: str, mode: str, *overrides: str) -> list[Step]:
        taken.clear()
        words = (*TRAINERS[trainer], *WORDS, f"trainer.args.vllm_importance_sampling_mode={mode}", *overrides)
        code, _ = train(*words)
        assert code == 0
        assert len(taken) == 2
        return list(taken)

    return run


def weight_of(completion: list[int], place: int, mode: str) -> float:
    """What the engine's ratio weighs a token's loss with; 1 where it gave no log-probability."""
    ratio = ratio_of(completion, place)
    if ratio is None or mode == "none":
        return 1.0
    if mode == "token_truncate":
        return min(max(ratio, LOWEST), HIGHEST)
    return ratio if LOWEST <= ratio <= HIGHEST else 0.0


def loss_by_hand(step: Step, loss_type: str, mode: str) -> Tensor:
    """The loss of a step over the rows that are not left out, row by row, without padding, in float64."""
    of_rows = []
    for batch in step.batches:
        for row, (prompt, completion) in enumerate(unpadded(batch)):
            if not completion:
                continue
            count = len(completion)
            logps = logps_of(step.policy, prompt, completion)
            old, reference = (batch[f"{name}_per_token_logps"][row, :count].double() for name in ("old", "ref"))
            advantages = batch["advantages"][row].double()
            advantages = advantages[:count] if advantages.dim() else advantages
            ratio = (logps - old).exp()
            surrogate = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
            weights = torch.tensor([weight_of(completion, place, mode) for place in range(count)])
            k3 = (reference - logps).exp() - 1 - (reference - logps)
            of_rows.append(surrogate * weights + BETA * ratio * k3)
    return torch.stack([row.mean() for row in of_rows]).mean() if loss_type == "grpo" else torch.cat(of_rows).mean()


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask"])
@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
@pytest.mark.parametrize("trainer", ["grpo", "ppo"])
def test_each_token_s_loss_is_weighed_by_how_far_the_engine_was_off(
    steps, trainer: str, loss_type: str, mode: str
) -> None:
    """With mu what the engine sampled by and pi_old the trainer's own at that moment, a token's loss is weighed by
    w = pi_old / mu, for a mean over mu of w f is one over pi_old of f. `token_truncate` clamps w to [0.5, 2],
    `token_mask` makes 0 of a w outside. The KL is not weighed, and neither is a token of which mu is not known (NaN).
    A row that is left out has no part in anything: the mean is over the others (grpo: of row means; dapo: of tokens).

    The engine's log-probabilities are log pi_old - log w with w of our choice, so the w of every token is known
    whatever is done to the order of rows (sorted within the window) and to columns (padding is cut off).
    """
    found = steps(trainer, mode, f"trainer.args.loss_type={loss_type}")
    lengths = [int(row.sum()) for batch in found[0].batches for row in batch["completion_mask"]]
    assert lengths.count(0) > 0  # some were cut off and are left out
    assert len(set(lengths)) > 3
    widths = {batch["completion_mask"].shape[1] for batch in found[0].batches}
    assert trainer == "grpo" or min(widths) < LIMIT  # padding was cut off
    for step in found:
        loss = loss_by_hand(step, loss_type, mode)
        assert step.loss == pytest.approx(loss.item(), **MODEL)
        loss.backward()
        largest = max(float(one.grad.abs().max()) for one in step.policy.parameters())
        for name, one in step.policy.named_parameters():
            torch.testing.assert_close(step.gradient[name].double(), one.grad, atol=2e-5 * largest, rtol=1e-4)
    # Control: without the weights, and in the other mode, it is another loss.
    other = "token_mask" if mode == "token_truncate" else "token_truncate"
    for wrong in ("none", other):
        assert max(abs(loss_by_hand(step, loss_type, wrong).item() - step.loss) for step in found) > 1e-3
