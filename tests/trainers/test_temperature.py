"""Log-probabilities are of the distribution that was sampled from: softmax(logits / temperature), everywhere."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.trainers.reward_mixin import RewardMixin
from tests.support.ppo_by_hand import DROP, ENDINGS, LIMIT, PLAIN, REWARDS, logps_of, plain, stir, unpadded
from tests.support.tolerances import MODEL

TEMPERATURE = 0.6
WORDS = (
    *(*DROP, *PLAIN, "trainer.args.beta=0.2", f"trainer.args.max_completion_length={LIMIT}"),
    *("trainer.args.num_iterations=2", "trainer.args.max_steps=2", "trainer.args.learning_rate=0.01"),
    *("trainer.args.disable_dropout=true", "trainer.args.lr_scheduler_type=constant"),
)


@dataclass
class Seen:
    """What trainer and plain models say of the same completions; rows without padding."""

    trainer: Any = None
    policy: Any = None
    reference: Any = None
    latest: Tensor = field(default_factory=lambda: torch.empty(0))
    output: dict[str, Tensor] = field(default_factory=dict)
    updates: list[tuple[Any, dict[str, Any], Tensor]] = field(default_factory=list)
    """Of every micro-batch: the policy as it was, the batch, and the log-probabilities that the loss was made of."""


@pytest.fixture
def run(train, before_training, workplace, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Seen]:
    """`run(temperature)`: GRPO with a policy apart from its reference, two epochs of one round of ragged rows."""
    (workplace / "mine.py").write_text(REWARDS)
    seen = Seen()

    def prepare(trainer: Any) -> None:
        seen.trainer = trainer
        stir(trainer.model, 0.05, seed=1)
        trainer.eos_token_ids = trainer.generation_config.eos_token_id = ENDINGS
        compute = trainer._get_per_token_logps_and_entropies

        def noted(*args: Any, **named: Any) -> Any:
            seen.latest, *others = compute(*args, **named)
            return seen.latest, *others

        trainer._get_per_token_logps_and_entropies = noted

    before_training(prepare)
    set_advantages, compute_loss = RewardMixin._set_advantages, RewardMixin._compute_loss

    def spied(self: Any, output: dict[str, Any]) -> Any:
        seen.policy, seen.reference = (plain(one, AutoModelForCausalLM) for one in (self.model, self.ref_model))
        seen.output = {name: value.clone() for name, value in output.items()}
        return set_advantages(self, output)

    def compute_spied(self: Any, model: Any, inputs: dict[str, Any]) -> Tensor:
        loss = compute_loss(self, model, inputs)
        seen.updates.append((plain(self.model, AutoModelForCausalLM), inputs, seen.latest))
        return loss

    monkeypatch.setattr(RewardMixin, "_set_advantages", spied)
    monkeypatch.setattr(RewardMixin, "_compute_loss", compute_spied)

    def call(temperature: float) -> tuple[Seen, dict[str, Any]]:
        code, folder = train(*WORDS, f"trainer.args.temperature={temperature}")
        assert code == 0
        return seen, read_metrics(folder.metrics)[0]

    return call


def by_hand(model: Any, batch: dict[str, Tensor], temperature: float) -> list[list[float]]:
    """log_softmax(logits / temperature) of every token that was sampled, in float64."""
    with torch.no_grad():
        return [logps_of(model, *row, temperature).tolist() for row in unpadded(batch)]


def rows(found: Tensor, batch: dict[str, Tensor]) -> list[list[float]]:
    return [values[mask.bool()].tolist() for values, mask in zip(found, batch["completion_mask"], strict=True)]


def assert_near(found: list[list[float]], expected: list[list[float]]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, **MODEL)


def test_of_rollout_reference_and_update(run) -> None:
    """A token is drawn from p_i = exp(z_i / T) / sum_j exp(z_j / T), so its log-probability is z_i / T minus the
    logarithm of that sum. The ratio of PPO's and GRPO's loss, and the KL, are of p; without the T they would be of a
    distribution that nothing was drawn from. The logged `kl` is the mean over tokens of k3 = q/p - 1 - log(q/p).
    """
    seen, event = run(TEMPERATURE)
    output = seen.output
    old, reference = (by_hand(model, output, TEMPERATURE) for model in (seen.policy, seen.reference))
    assert {len(row) for row in old} >= {1, LIMIT}
    assert_near(rows(output["old_per_token_logps"], output), old)
    assert_near(rows(output["ref_per_token_logps"], output), reference)
    assert len(seen.updates) == 2
    for policy, batch, found in seen.updates:
        assert_near(rows(found, batch), by_hand(policy, batch, TEMPERATURE))
    tokens = [(q - p).exp() - 1 - (q - p) for p, q in zip(_flat(old), _flat(reference), strict=True)]
    assert event["kl"] == pytest.approx(statistics.fmean(float(one) for one in tokens), **MODEL)
    # Control: at a temperature of 1 the same weights say something else of the same tokens, by far.
    assert _distance(old, by_hand(seen.policy, output, 1.0)) > 0.05


def test_control_at_a_temperature_of_1_they_are_the_model_s_own(run) -> None:
    seen, _ = run(1.0)
    expected = by_hand(seen.policy, seen.output, 1.0)
    assert_near(rows(seen.output["old_per_token_logps"], seen.output), expected)


def _flat(of_rows: list[list[float]]) -> Tensor:
    return torch.tensor([value for row in of_rows for value in row], dtype=torch.float64)


def _distance(one: list[list[float]], other: list[list[float]]) -> float:
    return float((_flat(one) - _flat(other)).abs().max())
