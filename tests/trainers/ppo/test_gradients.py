"""Gradients of policy and critic at every optimizer step, against losses written out on rows without padding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from rlhf_cli.trainers.ppo.critic import TrainedCritic
from rlhf_cli.trainers.ppo.ppo_mixin import PpoMixin
from tests.support.float64 import all_in_float64, no_float32
from tests.support.ppo_by_hand import LIMIT, logps_of, plain, unpadded, values_of
from tests.support.tolerances import ARITHMETIC, as_one, assert_equal


@dataclass
class Step:
    """One optimizer step: the micro-batches of its window, its round, both models before it, and their gradients."""

    batches: list[dict[str, Any]]
    round_tokens: int
    kept_share: float
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
            found.append((torch.zeros(1, dtype=torch.float64),) * 2)
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
            found.append(torch.stack([row.mean() for row in every]).mean() / step.kept_share)
        elif loss_type == "dr_grpo":
            found.append(torch.cat(every).sum() / (len(every) * step.kept_share * LIMIT))
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


@pytest.fixture
def steps(rollouts, before_training, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Step]]:
    """`steps(*overrides)`: optimizer steps of a small run in float64, with the gradients before they were clipped."""
    before_training(all_in_float64)
    taken: list[Step] = []
    window: list[dict[str, Any]] = []
    compute_loss, step = PpoMixin._compute_loss, TrainedCritic.step
    trainers: list[Any] = []

    def compute_spied(self: Any, model: Any, inputs: dict[str, Any]) -> Tensor:
        trainers.append(self)
        window.append(inputs)
        return compute_loss(self, model, inputs)

    def step_spied(self: Any) -> float:
        trainer = trainers[-1]
        taken.append(
            Step(
                list(window),
                sum(int(batch["completion_mask"].sum()) for batch in trainer._buffered_inputs),
                torch.cat([batch["completion_mask"].any(dim=1) for batch in trainer._buffered_inputs])
                .double()
                .mean()
                .item(),
                plain(trainer.model, AutoModelForCausalLM),
                plain(self.model, AutoModelForTokenClassification),
                gradient_of(trainer.model),
                gradient_of(self.model),
            )
        )
        window.clear()
        return step(self)

    monkeypatch.setattr(PpoMixin, "_compute_loss", compute_spied)
    monkeypatch.setattr(TrainedCritic, "step", step_spied)

    def run(*overrides: str, **named: Any) -> list[Step]:
        with no_float32():
            rollouts(*overrides, **named)
        return taken

    return run


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo", "bnpo"])
def test_equal_those_of_the_losses_written_out(steps, loss_type: str) -> None:
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
def test_with_the_kl_in_the_loss(steps, is_corrected: bool) -> None:
    """TRL weighs k3 with the ratio to the rollout's policy by default (arXiv 2512.02556)."""
    settings = () if is_corrected else ("trainer.args.use_bias_correction_kl=false",)
    repeated = ("trainer.args.num_iterations=2", "trainer.args.max_steps=3", "trainer.args.learning_rate=0.03")
    for step in steps("kl.where=loss", "kl.coef=0.3", *repeated, *settings):
        losses = losses_by_hand(step, "dapo", num_steps=2, beta=0.3, is_corrected=is_corrected)
        assert_gradients(step, losses, 0.5)
    other = losses_by_hand(step, "dapo", num_steps=2, beta=0.3, is_corrected=not is_corrected)
    assert abs(losses[0] - other[0]) > 1e-4


@pytest.mark.parametrize("loss_type", ["dapo", "dr_grpo"])
def test_with_excluded_rows(steps, loss_type: str) -> None:
    """Divisors count what is left: the same holds with rows that are not there."""
    taken = steps("truncation=exclude", "trainer.args.num_iterations=2", f"trainer.args.loss_type={loss_type}")
    lengths = [len(completion) for step in taken for batch in step.batches for _, completion in unpadded(batch)]
    assert 0 in lengths
    for step in taken:
        assert_gradients(step, losses_by_hand(step, loss_type, num_steps=2), 0.5)


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
