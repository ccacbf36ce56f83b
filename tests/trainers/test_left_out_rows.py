"""A round with left-out rows gives the same step as the round without them, for every loss."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import rlhf_cli.trainers.assemble.trainer
from rlhf_cli.cli import main
from rlhf_cli.tables.passes import Passes
from rlhf_cli.tables.trl_trainers import CLIPPED_PPO_LOSSES, POLICY_LOSSES
from rlhf_cli.trainers import left_out_mixin
from rlhf_cli.trainers.left_out_mixin import LeftOutMixin
from tests.support.float64 import all_in_float64, no_float32
from tests.support.small_runs import PPO_SMALL, SMALL
from tests.support.tolerances import EXACT, assert_equal

NUM_ROWS = 8
KEPT = torch.tensor([True, False, True, True, False, False, True, False])
WIDTH = 6
LENGTHS = torch.tensor([6, 6, 2, 5, 6, 6, 3, 6])


def round_of(trainer: Any, *, is_per_token: bool, seed: int = 0) -> dict[str, Tensor]:
    """Eight ragged rows, some with clipped ratios to the rollout; four are left out as the stack does it.

    A row left out has a zeroed mask, no advantage, and is not in the tokens that are counted.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    ids = torch.randint(40, 200, (NUM_ROWS, 3 + WIDTH), generator=generator)
    is_token = torch.arange(WIDTH) < LENGTHS.unsqueeze(1)
    mask = is_token & KEPT.unsqueeze(1)
    with torch.no_grad(), no_float32():
        logits = trainer.model(input_ids=ids).logits[:, 2:-1]
    logps = torch.log_softmax(logits / trainer.temperature, dim=-1).gather(2, ids[:, 3:].unsqueeze(2)).squeeze(2)
    old = logps + 0.3 * normal(NUM_ROWS, WIDTH)
    advantages = normal(NUM_ROWS, WIDTH) * mask if is_per_token else normal(NUM_ROWS) * KEPT
    made = {
        "prompt_ids": ids[:, :3],
        "prompt_mask": torch.ones(NUM_ROWS, 3, dtype=torch.long),
        "completion_ids": ids[:, 3:],
        "completion_mask": mask.long(),
        "advantages": advantages,
        "old_per_token_logps": old,
        "ref_per_token_logps": logps + 0.3 * normal(NUM_ROWS, WIDTH),
        "old_logps": (old * mask).sum(dim=1),
        "num_items_in_batch": mask.sum(),
    }
    if is_per_token:
        made |= {"returns": normal(NUM_ROWS, WIDTH) * mask, "rollout_values": 0.1 * normal(NUM_ROWS, WIDTH) * mask}
    return made


def kept_rows(made: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same round without the rows that are left out."""
    return {name: value[KEPT] if value.dim() else value for name, value in made.items()}


@dataclass
class Learned:
    """One optimizer step: the gradient, the loss as it is logged (a critic's added), and the means of the metrics."""

    gradient: Tensor
    loss: float
    metrics: dict[str, float]
    critic_gradient: Tensor | None = None


@no_float32()
def learn_from(trainer: Any, made: dict[str, Tensor], num_batches: int) -> Learned:
    """Feed a trainer one round in that many micro-batches, all of them one optimizer step, as `Trainer.train` does."""
    trainer._generate_and_score_completions = lambda inputs: dict(made)
    trainer._step, trainer._buffered_inputs = 0, None
    trainer.args.steps_per_generation = trainer.current_gradient_accumulation_steps = num_batches
    trainer.accelerator.gradient_state._set_sync_gradients(True)
    trainer.model.train()
    trainer.model.zero_grad()
    trainer._metrics["train"].clear()
    critic = getattr(trainer, "critic", None)
    if critic is not None:
        critic.model.zero_grad()
    # RLOO returns a loss that transformers divides by the accumulation; the others divide it themselves.
    divisor = 1 if hasattr(trainer, "loss_type") else num_batches
    total = 0.0
    for _ in range(num_batches):
        inputs = trainer._prepare_inputs([])
        loss = trainer._compute_loss(trainer.model, inputs) / divisor
        loss.backward()
        total += loss.item()
        if critic is not None:
            critic.backward(value_loss := trainer._value_loss(inputs))
            total += value_loss.item()
        trainer._step += 1
    metrics = {name: sum(values) / len(values) for name, values in trainer._metrics["train"].items() if values}
    return Learned(_gradient(trainer.model), total, metrics, None if critic is None else _gradient(critic.model))


def _gradient(model: Any) -> Tensor:
    return torch.cat([one.grad.detach().flatten() for one in model.parameters() if one.grad is not None])


WORDS = {
    "grpo": ["trainer.args.beta=0.3"],
    "rloo": ["trainer=rloo"],
    "gmpo": ["trainer=gmpo", "trainer.args.beta=0.3"],
    "ppo": [*PPO_SMALL, "kl.where=loss", "kl.coef=0.3"],
}
BY_MICRO_BATCH = [name for name, divisor in POLICY_LOSSES.items() if divisor == "micro-batch"]
CASES = [
    *(("grpo", loss_type) for loss_type in POLICY_LOSSES),
    ("rloo", None),
    ("gmpo", None),
    *(("ppo", name) for name in CLIPPED_PPO_LOSSES),
]


@pytest.fixture(scope="module")
def trainers(tmp_path_factory: pytest.TempPathFactory, model_cache: Path) -> dict[str, Any]:
    """One trainer of each kind that generates, as a run of one step leaves it, but in float64."""
    made: dict[str, Any] = {}
    assemble = rlhf_cli.trainers.assemble.trainer.assemble
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("trainers"))
        patch.setenv("RLHF_CACHE", str(model_cache))
        for name, words in WORDS.items():

            def kept(*args: Any, name: str = name, **named: Any) -> Any:
                made[name] = assemble(*args, **named)
                return made[name]

            patch.setattr(rlhf_cli.trainers.assemble.trainer, "assemble", kept)
            assert main(["train", *SMALL, *words, "trainer.args.max_steps=1", f"run.name={name}"]) == 0
            all_in_float64(made[name])
    return made


@pytest.fixture
def trainer_of(trainers, monkeypatch: pytest.MonkeyPatch):
    """`trainer_of(name, loss_type)`: a trainer whose loss is that one, restored afterwards."""

    def prepare(name: str, loss_type: str | None) -> Any:
        trainer = trainers[name]
        for attribute in ("_step", "_buffered_inputs", "current_gradient_accumulation_steps"):
            monkeypatch.setattr(trainer, attribute, getattr(trainer, attribute, 0))
        monkeypatch.setattr(trainer.args, "steps_per_generation", 1)
        if loss_type is not None:
            monkeypatch.setattr(trainer, "loss_type", loss_type)
            level = "sequence" if loss_type == "luspo" else "token"
            monkeypatch.setattr(trainer, "importance_sampling_level", level)
        return trainer

    return prepare


def assert_same_step(found: Learned, expected: Learned) -> None:
    assert_near(found.gradient, expected.gradient)
    assert found.loss == pytest.approx(expected.loss, rel=EXACT)
    assert (found.critic_gradient is None) is (expected.critic_gradient is None)
    if found.critic_gradient is not None:
        assert_near(found.critic_gradient, expected.critic_gradient)


def assert_near(found: Tensor, expected: Any) -> None:
    assert expected.norm() > 1e-4
    assert_equal(found, expected)


@pytest.mark.parametrize(
    ("name", "loss_type", "num_batches"),
    [
        pytest.param(*case, count, marks=[pytest.mark.whole] if count == 2 else [])
        for case in CASES
        for count in (1, 2, 8)
        if case[1] not in BY_MICRO_BATCH or count != 2
    ],
)
def test_a_round_with_rows_left_out_is_the_round_without_them(
    trainer_of, name: str, loss_type: str | None, num_batches: int
) -> None:
    """The rows that count are the same, so is what they teach, in one micro-batch, in two, and in one a row.

    bnpo means over the tokens of a micro-batch by its definition, so which rows share one matters to it: it is compared
    where that is the same, in one micro-batch and in one a row.
    """
    trainer = trainer_of(name, loss_type)
    made = round_of(trainer, is_per_token=name == "ppo")
    without = len(KEPT.nonzero()) if loss_type in BY_MICRO_BATCH and num_batches == NUM_ROWS else 1
    found, expected = learn_from(trainer, made, num_batches), learn_from(trainer, kept_rows(made), without)
    assert_same_step(found, expected)
    if num_batches == 1:
        assert found.metrics == pytest.approx(expected.metrics, rel=EXACT, abs=EXACT)


@no_float32()
def metrics_by_hand(name: str, trainer: Any, made: dict[str, Tensor]) -> dict[str, float]:
    """The means over the tokens that count, in float64."""
    model = copy.deepcopy(trainer.model).eval()
    ids = torch.cat([made["prompt_ids"], made["completion_ids"]], dim=1)
    with torch.no_grad():
        log_probs = torch.log_softmax(model(input_ids=ids).logits[:, 2:-1] / trainer.temperature, dim=-1)
    logps = log_probs.gather(2, ids[:, 3:].unsqueeze(2)).squeeze(2)
    mask = made["completion_mask"].bool()
    difference = made["ref_per_token_logps"].double() - logps
    advantages = made["advantages"] if made["advantages"].dim() == 2 else made["advantages"].unsqueeze(1)
    ratio = (logps - made["old_per_token_logps"].double()).exp()
    low = (ratio < 1 - trainer.epsilon_low) & (advantages < 0)
    high = (ratio > 1 + trainer.epsilon_high) & (advantages > 0)
    # DeepSeek-V3.2's, which TRL's GMPO lacks
    corrects_kl = getattr(trainer.args, "use_bias_correction_kl", False) and name != "gmpo"
    tokens = {
        "kl": (difference.exp() - difference - 1) * (ratio if corrects_kl else 1),
        "entropy": -(log_probs.exp() * log_probs).sum(dim=2),
        "clip_ratio/low_mean": low.double(),
        "clip_ratio/high_mean": high.double(),
        "clip_ratio/region_mean": (low | high).double(),
    }
    return {name: float(values[mask].mean()) for name, values in tokens.items()}


@pytest.mark.parametrize("mode", ["packed", "plain"])
@pytest.mark.parametrize("num_batches", [pytest.param(2, marks=pytest.mark.whole), 8])
@pytest.mark.parametrize(("name", "loss_type"), [case for case in CASES if case[1] != "luspo"])
def test_a_metric_is_the_mean_over_what_counts(
    trainer_of, monkeypatch: pytest.MonkeyPatch, name: str, loss_type: str | None, num_batches: int, mode: Any
) -> None:
    """Of eight micro-batches of one row, four hold no token that counts."""
    trainer = trainer_of(name, loss_type)
    monkeypatch.setattr(trainer, "passes", Passes(mode))
    monkeypatch.setattr(trainer.args, "gradient_accumulation_steps", num_batches)
    made = round_of(trainer, is_per_token=name == "ppo")
    found = learn_from(trainer, made, num_batches).metrics
    by_sequence = {"gmpo": ("clip",), "rloo": ("clip", "kl")}.get(name, ())
    left_out = ("clip",) if loss_type in ("cispo", "sapo", "vespo") else by_sequence
    by_hand = metrics_by_hand(name, trainer, made)
    expected = {key: value for key, value in by_hand.items() if not key.startswith(left_out)}
    assert {key: found.get(key) for key in expected} == pytest.approx(expected, rel=EXACT, abs=EXACT)


@pytest.mark.parametrize("mode", ["packed", "plain"])
@pytest.mark.parametrize("name", [name for name in WORDS if name != "rloo"])
def test_completions_of_one_token_are_averaged_with_the_mask(
    trainer_of, monkeypatch: pytest.MonkeyPatch, name: str, mode: Any
) -> None:
    """TRL takes a single column for one number per row, and averages it over rows that are left out, too."""
    trainer = trainer_of(name, None)
    monkeypatch.setattr(trainer, "passes", Passes(mode))
    made = round_of(trainer, is_per_token=name == "ppo")
    made["completion_mask"][:, 1:] = 0
    made["num_items_in_batch"] = made["completion_mask"].sum()
    if name == "ppo":
        made |= {key: made[key] * made["completion_mask"] for key in ("advantages", "returns")}
    one = {key: value[:, :1] if value.shape[-1:] == (WIDTH,) else value for key, value in made.items()}
    found, expected = learn_from(trainer, one, 1), metrics_by_hand(name, trainer, made)
    for key in ("kl", "entropy"):
        assert found.metrics[key] == pytest.approx(expected[key], rel=EXACT, abs=EXACT)
    assert_same_step(found, learn_from(trainer, made, 1))


@pytest.mark.parametrize(("name", "loss_type"), CASES)
def test_control_left_as_it_is_the_step_shrinks(
    trainer_of, monkeypatch: pytest.MonkeyPatch, name: str, loss_type: str | None
) -> None:
    """Without the correction half of the rows halve the step, but where tokens of the round are what it divides by."""
    trainer = trainer_of(name, loss_type)
    made = round_of(trainer, is_per_token=name == "ppo")
    counted, whole = LeftOutMixin._counted, {"kept_rows": 1.0, "kept_batches": 1.0}
    monkeypatch.setattr(LeftOutMixin, "_counted", lambda *given: [batch | whole for batch in counted(*given)])
    found, expected = learn_from(trainer, made, NUM_ROWS), learn_from(trainer, kept_rows(made), len(KEPT.nonzero()))
    is_right = loss_type is not None and name != "gmpo" and POLICY_LOSSES[loss_type] == "window"
    assert_near(found.gradient, expected.gradient * (1.0 if is_right else 0.5))


@pytest.mark.parametrize("num_batches", [1, 8])
def test_the_entropy_bonus_is_a_mean_over_what_counts(trainer_of, monkeypatch, num_batches: int) -> None:
    """TRL's is a mean over micro-batches of the mean over tokens: one without any has no part in it."""
    trainer = trainer_of("grpo", "dapo")
    for attribute, value in (("entropy_coef", 0.4), ("_entropy_bonus_enabled", True), ("beta", 0.0)):
        monkeypatch.setattr(trainer, attribute, value)
    made = round_of(trainer, is_per_token=False)
    made["advantages"] = torch.zeros_like(made["advantages"])
    found = learn_from(trainer, made, num_batches)
    expected = learn_from(trainer, kept_rows(made), 1 if num_batches == 1 else 4)
    assert_same_step(found, expected)
    assert found.metrics["entropy_coef"] == pytest.approx(0.4)
    assert trainer.entropy_coef == 0.4


def test_a_sequence_s_ratio_is_counted_over_the_rows_that_count(trainer_of, monkeypatch) -> None:
    """With all rows that count clipped, and all downwards, each of RLOO's figures is 1."""
    trainer = trainer_of("rloo", None)
    made = round_of(trainer, is_per_token=False)
    made["advantages"] = -KEPT.float()
    made["old_logps"] = (made["old_logps"] + 5.0) * KEPT
    metrics = learn_from(trainer, made, 2).metrics
    for metric, value in (("low_mean", 1.0), ("low_min", 1.0), ("region_mean", 1.0), ("high_max", 0.0)):
        assert metrics[f"clip_ratio/{metric}"] == pytest.approx(value), metric


@pytest.mark.parametrize("name", WORDS)
def test_nothing_left_is_nothing_to_learn(trainer_of, name: str) -> None:
    trainer = trainer_of(name, None)
    made = round_of(trainer, is_per_token=name == "ppo")
    names = ("completion_mask", "advantages", "old_logps", "num_items_in_batch")
    made |= {key: torch.zeros_like(made[key]) for key in names}
    learned = learn_from(trainer, made, 2)
    assert not learned.gradient.any()
    logged = {key: value for key, value in learned.metrics.items() if key in ("kl", "entropy") and name != "rloo"}
    assert all(math.isnan(value) for value in logged.values()), logged


def test_a_row_without_a_score_counts_nowhere() -> None:
    """Of the first row's three tokens the policy wrote two; half of the rows are left, and the only micro-batch."""
    trainer = LeftOutMixin()
    trainer.accelerator = SimpleNamespace(gather=lambda tensor: tensor, reduce=lambda tensor, reduction: tensor)
    trainer.args = SimpleNamespace(gradient_accumulation_steps=1)
    output: dict[str, Any] = {
        "completion_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]),
        "tool_mask": torch.tensor([[1, 0, 1], [0, 1, 1]]),
        "old_logps": torch.tensor([-3.0, -900.0]),
        "old_per_token_logps": torch.tensor([[-1.0, -1.0, -1.0], [-800.0, -100.0, 0.0]]),
        "num_items_in_batch": torch.tensor(3),
    }
    trainer.drop_rows(output, torch.tensor([False, True]))
    assert output["completion_mask"].tolist() == [[1, 1, 1], [0, 0, 0]]
    assert output["tool_mask"].tolist() == [[1, 0, 1], [0, 0, 0]]
    assert output["old_logps"].tolist() == [-3.0, 0.0]
    assert output["old_per_token_logps"].tolist() == [[-1.0] * 3, [0.0] * 3]
    assert int(output["num_items_in_batch"]) == 2
    kept = (left_out_mixin.KEPT_ROWS, left_out_mixin.KEPT_BATCHES)
    assert [trainer._counted([output])[0][name] for name in kept] == [0.5, 1.0]
    trainer.drop_rows(output, torch.tensor([True, True]))  # with nothing left there is nothing to correct
    assert [trainer._counted([output])[0][name] for name in kept] == [1.0, 1.0]


def test_a_metric_over_rows_counts_those_of_all_processes() -> None:
    """Two ranks with two rows each; one row is left out and has a ratio of 1: (4 x 0.75 - 2 x 1) / 2."""
    accelerator: Any = SimpleNamespace(num_processes=2, reduce=lambda counts, reduction: 2 * counts)
    inputs: Any = {"advantages": torch.zeros(2), "completion_mask": torch.tensor([[1, 1], [0, 0]])}
    metrics = {"vespo/phi_seq_mean": [0.75]}
    left_out_mixin.count_metrics_over_kept(metrics, inputs, accelerator, counts_clipped_rows=False)
    assert metrics == {"vespo/phi_seq_mean": [0.5]}


def test_the_means_of_a_micro_batch_are_those_of_its_window() -> None:
    """Four micro-batches of a row with 1, 2, 3 and 5 tokens are two optimizer steps."""
    accelerator = SimpleNamespace(reduce=lambda own, reduction: own)
    trainer: Any = SimpleNamespace(args=SimpleNamespace(gradient_accumulation_steps=2), accelerator=accelerator)
    batches = LeftOutMixin._counted(trainer, [{"completion_mask": torch.ones(1, tokens)} for tokens in (1, 2, 3, 5)])
    assert [batch[left_out_mixin.IN_WINDOW] for batch in batches] == [[1.0, 1.5]] * 2 + [[1.0, 4.0]] * 2
