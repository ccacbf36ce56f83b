"""Log-probabilities that generation kept: equal to recomputed ones, and a run resumes with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import trl
from peft import LoraConfig
from torch import Tensor

from rlhf_cli.algorithms.grpo import Grpo
from rlhf_cli.algorithms.rloo import Rloo
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.tables.passes import GenerationSetting
from rlhf_cli.trainers import rollout_mixin
from rlhf_cli.trainers.extensions import Extensions, RewardSetup
from rlhf_cli.trainers.rollout_mixin import KeptLogps, RolloutMixin
from tests.support.tiny_decoders import ENDS, VOCABULARY, model_of
from tests.support.tolerances import FLOAT32, distance
from tests.trainers.kept_gradients import random_prompts, trained_on

pytestmark = pytest.mark.whole


class Counted:
    """Mixed in directly above TRL, it counts the passes without a gradient, and keeps what was sampled."""

    passes: int = 0

    def _get_per_token_logps_and_entropies(self, *args: Any, **named: Any) -> Any:
        self.passes += not torch.is_grad_enabled()
        return super()._get_per_token_logps_and_entropies(*args, **named)  # type: ignore[misc]

    def _generate_single_turn(self, *args: Any, **named: Any) -> Any:
        generated = super()._generate_single_turn(*args, **named)  # type: ignore[misc]
        ids = generated if isinstance(self, trl.RLOOTrainer) else generated[0]
        self.sampled = [*getattr(self, "sampled", []), *ids]
        return generated


def trained(
    folder: Path,
    generation: GenerationSetting | None,
    *,
    trainer: str = "GRPO",
    model: Any = None,
    own: Any = None,
    **settings: Any,
) -> tuple[list[Tensor], Any]:
    """Return the gradients of every step and the trainer; `generation` None runs TRL's trainer without our mixins."""
    trl_trainer = getattr(trl, f"{trainer}Trainer")
    bases: tuple[type, ...] = (Counted, *([own] if own is not None else []), trl_trainer)
    if generation is not None:
        bases = (RolloutMixin, *bases)
        algorithm = Rloo() if trainer == "RLOO" else Grpo()
        rewards = RewardSetup(RewardStack([]), algorithm, generation=generation)
        settings["extensions"] = Extensions(rewards=rewards)
    policy = model if model is not None else model_of("llama")
    policy.generation_config.eos_token_id = ENDS
    return trained_on(
        random_prompts(8, VOCABULARY),
        bases,
        folder,
        model=policy,
        **{"gradient_accumulation_steps": 1, "steps_per_generation": 2, "max_steps": 4, **settings},
    )


def farthest(found: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest distance of a step's gradient from the one that is right."""
    return max(distance(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


# What sampling knew of its tokens' probabilities is what TRL would ask the policy for; TRL alone is the other side.


NAME = "sampling/kept_logp_difference"
LORA = LoraConfig(r=4, lora_alpha=64, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
CASES: dict[str, dict[str, Any]] = {
    "grpo": {"temperature": 0.8},
    "grpo, penalised": {"repetition_penalty": 1.2, "top_k": 20, "num_iterations": 2},
    "rloo": {"trainer": "RLOO", "beta": 0.1},
    "grpo, lora": {"lora": LORA, "beta": 0.1},
}
"""Optimizer steps of one micro-batch over rounds of two: TRL asks for the probabilities at the rollout."""


def logged(trainer: Any, name: str) -> list[float]:
    return [event[name] for event in trainer.state.log_history if name in event]


@pytest.mark.parametrize("name", CASES)
def test_the_same_gradients_with_a_pass_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Two rounds of two steps. In the first the pass is made as well, and the difference logged; it is rounding."""
    monkeypatch.setattr(rollout_mixin, "_CHECK_EVERY", 2)
    case = CASES[name]
    theirs, stock = trained(tmp_path / "theirs", None, **case)
    ours, live = trained(tmp_path / "ours", "auto", **case)
    assert live.generation_mode.name == "live"
    assert stock.sampled == live.sampled
    assert len({len(ids) for ids in live.sampled}) >= 4
    num_rounds = 1 if case.get("num_iterations") else 2
    assert stock.passes - live.passes == num_rounds - 1
    assert farthest(ours, theirs) < FLOAT32
    assert len(logged(live, f"{NAME}/mean")) == 1
    assert 0 <= logged(live, f"{NAME}/mean")[0] <= logged(live, f"{NAME}/max")[0] < 1e-4


def test_negative_control_others_probabilities_are_other_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the logged difference gives them away."""
    theirs, _ = trained(tmp_path / "theirs", None, max_steps=2)
    monkeypatch.setattr(rollout_mixin, "_MOST_APART", 1.0)
    padded = KeptLogps.padded
    monkeypatch.setattr(KeptLogps, "padded", lambda self, num_tokens: padded(self, num_tokens) - 0.1)
    ours, live = trained(tmp_path / "ours", "auto", max_steps=2)
    assert farthest(ours, theirs) > 0.01
    assert logged(live, f"{NAME}/mean")[0] == pytest.approx(0.1, rel=1e-3)


def test_values_that_are_not_those_of_a_pass_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One token of a row is off by 0.02 nats: all rounds are recomputed, with one warning."""
    theirs, stock = trained(tmp_path / "theirs", None)
    padded = KeptLogps.padded

    def wrong(self: KeptLogps, num_tokens: int) -> Tensor:
        logps = padded(self, num_tokens).clone()
        logps[1, 0] -= 0.02
        return logps

    monkeypatch.setattr(KeptLogps, "padded", wrong)
    ours, live = trained(tmp_path / "ours", "auto")
    assert stock.passes == live.passes == 2
    assert farthest(ours, theirs) < 1e-5
    assert logged(live, f"{NAME}/max") == [pytest.approx(0.02, rel=1e-2)]
    assert "nats off" in live.slow_paths()["keeping of log-probabilities"]
    assert [one.getMessage() for one in caplog.records if "computed again" in one.getMessage()]


def two_turns(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """A rollout function: an answer, and what follows it."""
    prompt_ids, images, fields = trainer._tokenize_prompts(prompts)
    first = trainer._generate_single_turn(prompt_ids, images, fields, 4)[0]
    longer = [[*prompt, *ids[:4]] for prompt, ids in zip(prompt_ids, first, strict=True)]
    second = trainer._generate_single_turn(longer, images, fields, 4)[0]
    both = [[*one[:4], *other] for one, other in zip(first, second, strict=True)]
    return {"prompt_ids": prompt_ids, "completion_ids": both, "logprobs": None}


class RolloutFunction:
    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named, rollout_func=two_turns)  # type: ignore[call-arg]


class OwnGenerate:
    """Generates twice without a rollout function, as a subclass of the user's may."""

    def _generate(self, prompts: list[Any], *args: Any) -> Any:
        found = list(super()._generate(prompts, *args))  # type: ignore[misc]
        made = two_turns(prompts, self)
        found[:2] = made["prompt_ids"], made["completion_ids"]
        found[3] = self.processing_class.batch_decode(found[1])  # type: ignore[attr-defined]
        return tuple(found)


@pytest.mark.parametrize("generates", [RolloutFunction, OwnGenerate])
@pytest.mark.parametrize("more", [{}, {"num_iterations": 2}, {"beta": 0.1}], ids=str)
def test_answers_of_several_turns_are_not_those_of_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, generates: type, more: dict[str, Any]
) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    theirs, _ = trained(tmp_path / "theirs", None, own=generates, **more)
    ours, live = trained(tmp_path / "ours", "auto", own=generates, **more)
    assert farthest(ours, theirs) < 1e-5
    assert not logged(live, f"{NAME}/mean")
    assert live._why_not_kept is None  # they were never used, so no error was detected
    assert live._kept_logps is None  # nor are they there for a later pass, of other weights


@pytest.mark.parametrize("reason", ["plain", "on policy", "dropout", "half precision"])
def test_where_they_are_not_kept(tmp_path: Path, reason: str) -> None:
    settings: dict[str, Any] = {"max_steps": 1}
    if reason == "on policy":
        settings["gradient_accumulation_steps"] = 2
    if reason == "dropout":
        settings["model"] = model_of("llama")
        settings["model"].config.attention_dropout = 0.1
    if reason == "half precision":
        settings["model"] = model_of("llama").to(torch.bfloat16)
    _, trainer = trained(tmp_path, "plain" if reason == "plain" else "auto", **settings)
    assert trainer.passes == (0 if reason == "on policy" else 1)
    assert not logged(trainer, f"{NAME}/mean")
    assert trainer.generation_mode.name == ("plain" if reason == "plain" else "live")


def test_they_are_of_the_adapters_in_use(tmp_path: Path) -> None:
    """Without the adapter the model is the reference, which gives the same tokens other probabilities."""
    _, trainer = trained(tmp_path, "auto", lora=LORA, max_steps=1)
    model = trainer.model
    rows = [([5, 6], [7]), ([8], [9]), ([5, 6], [4])]
    kept = KeptLogps.of(model, -torch.arange(1.0, 13.0).view(3, 4), rows)
    ids, mask = torch.tensor([[5, 6, 7], [0, 8, 9], [5, 6, 4]]), torch.tensor([[1, 1, 1], [0, 1, 1], [1, 1, 1]])
    assert kept.is_of(model, ids, mask, 1)
    assert not kept.is_of(model, ids, mask, 2)
    assert not kept.is_of(model, ids[:2], mask[:2], 1)
    assert not kept.is_of(model, ids[[1, 0, 2]], mask[[1, 0, 2]], 1)
    with model.disable_adapter():
        assert not kept.is_of(model, ids, mask, 1)
    assert kept.is_of(model, ids, mask, 1)
    first, *_ = kept.padded(6).tolist()
    assert first == [-1.0, -2.0, -3.0, -4.0, 0.0, 0.0]
    assert kept.padded(2).tolist() == [[-1.0, -2.0], [-5.0, -6.0], [-9.0, -10.0]]
