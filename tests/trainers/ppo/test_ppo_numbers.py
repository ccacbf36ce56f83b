"""PPO's numbers against arithmetic of our own: row by row, without padding, in float64, with loops and plain models."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification
from trl import GRPOTrainer

from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.trainers.ppo.critic import SeparateCritic
from rlhf_cli.trainers.ppo.with_critic import WithCritic
from tests.support.tolerances import ARITHMETIC, MODEL

PAD, EOS = 0, 1
ENDINGS = [EOS, *range(2, 60)]
"""As if the model declared that many: about a fifth of all tokens ends a completion, so that rows are ragged."""
LIMIT = 6
GAMMA, LAMBDA = 0.9, 0.8

REWARDS = """
def first(completion_ids, **kwargs):
    return [ids[0] % 5 / 4 for ids in completion_ids]

def length(completion_ids, **kwargs):
    return [len(ids) / 3 for ids in completion_ids]

def odd_only(completion_ids, **kwargs):
    return [1.0 + len(ids) if ids[0] % 2 else None for ids in completion_ids]

def odd(completion_ids, **kwargs):
    return [float(ids[0] % 2) for ids in completion_ids]

def two(completion_ids, **kwargs):
    return [2.0] * len(completion_ids)

def each(completion_ids, **kwargs):
    return [[None if token % 3 == 0 else token % 7 - 3.0 for token in ids] for ids in completion_ids]
"""
DROP = ("~rewards.correct", "~rewards.format", "~rewards.brevity")
PLAIN = ("++rewards.first={fn: './mine.py:first'}", "++rewards.length={fn: './mine.py:length', weight: 0.5}")
DISCOUNTED = (f"trainer.args.gamma={GAMMA}", f"trainer.args.gae_lambda={LAMBDA}")


def total_of(completion: list[int]) -> float:
    """What PLAIN gives, by its definition."""
    return completion[0] % 5 / 4 + 0.5 * len(completion) / 3


@dataclass
class Row:
    """One row of a rollout without padding. `values` has one more than there are tokens."""

    prompt: list[int]
    completion: list[int]
    logps: list[float]
    ref_logps: list[float]
    values: list[float]

    @property
    def is_truncated(self) -> bool:
        return len(self.completion) == LIMIT and self.completion[-1] not in (*ENDINGS, PAD)

    @property
    def kl(self) -> list[float]:
        return [p - q for p, q in zip(self.logps, self.ref_logps, strict=True)]


@dataclass
class Rollouts:
    """What a run put into its rollouts, and the same rows without padding as they were then."""

    trainer: Any = None
    outputs: list[dict[str, Tensor]] = field(default_factory=list)
    rows: list[list[Row]] = field(default_factory=list)
    found: list[Any] = field(default_factory=list)
    settled: list[Any] = field(default_factory=list)
    folder: Any = None

    @property
    def events(self) -> list[dict[str, Any]]:
        return [event for event in read_metrics(self.folder.metrics) if "loss" in event]


def plain(model: Any, auto: Any) -> Any:
    """The same weights in a model that neither TRL nor we have touched, in float64 but for Llama's norms."""
    with torch.random.fork_rng(devices=[]):
        copy = auto.from_config(model.config).double()
    copy.load_state_dict(model.state_dict())
    return copy.eval()


def logps_of(model: Any, prompt: list[int], completion: list[int]) -> Tensor:
    logits = model(input_ids=torch.tensor([prompt + completion])).logits[0]
    chosen = torch.log_softmax(logits[len(prompt) - 1 : -1], dim=1)
    return chosen.gather(1, torch.tensor(completion).unsqueeze(1)).squeeze(1)


def values_of(critic: Any, prompt: list[int], completion: list[int]) -> Tensor:
    """One more than there are tokens: the last is of the state after them."""
    logits = critic(input_ids=torch.tensor([prompt + completion])).logits[0, :, 0]
    return logits[len(prompt) - 1 :]


def unpadded(batch: dict[str, Tensor]) -> Iterator[tuple[list[int], list[int]]]:
    columns = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    for prompt, prompt_mask, completion, mask in zip(*(batch[name] for name in columns), strict=True):
        yield prompt[prompt_mask.bool()].tolist(), completion[mask.bool()].tolist()


def rows_of(trainer: Any, output: dict[str, Tensor]) -> list[Row]:
    policy = plain(trainer.model, AutoModelForCausalLM)
    reference = policy if trainer.ref_model is None else plain(trainer.ref_model, AutoModelForCausalLM)
    critic = plain(trainer.critic.model, AutoModelForTokenClassification)
    rows = []
    with torch.no_grad():
        for prompt, completion in unpadded(output):
            if not completion:
                rows.append(Row(prompt, [], [], [], []))
                continue
            logps = [logps_of(model, prompt, completion).tolist() for model in (policy, reference)]
            rows.append(Row(prompt, completion, *logps, values_of(critic, prompt, completion).tolist()))
    return rows


def gae_of(rewards: list[float], values: list[float], last: float, gamma: float, lam: float) -> list[float]:
    """By its definition as a sum: A_t = sum_l (gamma lambda)^l delta_{t+l}."""
    following = [*values[1:], last]
    deltas = [r + gamma * after - v for r, after, v in zip(rewards, following, values, strict=True)]
    return [
        sum((gamma * lam) ** l * delta for l, delta in enumerate(deltas[start:]))  # noqa: E741
        for start in range(len(deltas))
    ]


def whitened(rows: list[list[float]]) -> list[list[float]]:
    tokens = [value for row in rows for value in row]
    mean, deviation = statistics.fmean(tokens), math.sqrt(statistics.variance(tokens) + 1e-8)
    return [[(value - mean) / deviation for value in row] for row in rows]


def raw_advantages(
    rows: list[Row], totals: list[float], *, coef: float = 0.0, is_bootstrapped: bool = False
) -> list[list[float]]:
    found = []
    for row, total in zip(rows, totals, strict=True):
        rewards = [-coef * kl for kl in row.kl]
        if rewards:
            rewards[-1] += total
        goes_on = is_bootstrapped and row.is_truncated
        last = row.values[-1] if goes_on else 0.0
        found.append(gae_of(rewards, row.values[:-1], last, GAMMA, LAMBDA))
    return found


def assert_rows(found: Tensor, expected: list[list[float]]) -> None:
    """`found` (B, T) holds the rows of `expected`, and 0 behind them."""
    for row, values in zip(found.tolist(), expected, strict=True):
        assert row[: len(values)] == pytest.approx(values, **MODEL)
        assert not any(row[len(values) :])


def stir(module: Any, scale: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))


@pytest.fixture
def prepared(workplace: Path, before_training) -> list[Any]:
    """Rewards in a file; a policy apart from its reference, a critic apart from 0, many endings. The trainers made."""
    (workplace / "mine.py").write_text(REWARDS)
    made: list[Any] = []

    def prepare(trainer: Any) -> None:
        made.append(trainer)
        stir(trainer.model, 0.05, seed=1)
        stir(trainer.critic.model, 0.3, seed=2)
        trainer.eos_token_ids = trainer.generation_config.eos_token_id = ENDINGS

    before_training(prepare)
    return made


@pytest.fixture
def rollouts(train_ppo, prepared, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Rollouts]:
    """`rollouts(*overrides)`: a small PPO run, and what was in its rollouts."""
    seen = Rollouts()
    set_advantages = WithCritic._set_advantages

    def spied(self: Any, output: dict[str, Any]) -> Any:
        rows = rows_of(self, output)
        shares = set_advantages(self, output)
        seen.rows.append(rows)
        seen.outputs.append({name: value.clone() for name, value in output.items()})
        seen.found.append(self._found)
        seen.settled.append(self._settled)
        return shares

    monkeypatch.setattr(WithCritic, "_set_advantages", spied)

    def run(*overrides: str, rewards: tuple[str, ...] = PLAIN, name: str = "one") -> Rollouts:
        nonlocal seen
        seen = Rollouts()
        settings = (f"trainer.args.max_completion_length={LIMIT}", "trainer.args.max_steps=2")
        code, folder = train_ppo(*DROP, *rewards, *settings, *DISCOUNTED, *overrides, name=name)
        assert code == 0
        seen.folder, seen.trainer = folder, prepared[-1]
        return seen

    return run


class TestRollout:
    """The advantages, returns and values of a rollout, recomputed row by row."""

    @pytest.mark.parametrize("where", ["reward", "loss", "none"])
    def test_wherever_the_kl_penalty_is(self, rollouts, where: str) -> None:
        coef = () if where == "none" else ("kl.coef=0.3",)
        run = rollouts(f"kl.where={where}", *coef)
        (rows,), (output,) = run.rows, run.outputs
        assert {len(row.completion) for row in rows} >= {1, 2, LIMIT}  # ragged, and one is cut
        assert len({len(row.prompt) for row in rows}) > 1
        assert where == "none" or sum(abs(kl) for row in rows for kl in row.kl) > 1
        totals = [total_of(row.completion) for row in rows]
        raw = raw_advantages(rows, totals, coef=0.3 if where == "reward" else 0.0)
        assert_rows(output["advantages"], whitened(raw))
        assert_rows(output["rollout_values"], [row.values[:-1] for row in rows])
        returns = [[a + v for a, v in zip(one, row.values, strict=False)] for one, row in zip(raw, rows, strict=True)]
        assert_rows(output["returns"], returns)
        assert ("ref_per_token_logps" in output) == (where == "loss")
        if where != "none":
            logps = output["old_per_token_logps"].where(output["completion_mask"].bool(), 0.0)
            assert_rows(logps, [row.logps for row in rows])
        if where == "loss":
            logps = output["ref_per_token_logps"].where(output["completion_mask"].bool(), 0.0)
            assert_rows(logps, [row.ref_logps for row in rows])

    @pytest.mark.parametrize(
        ("policy", "total"),
        [
            (("truncation=bootstrap", "truncation.mode=add"), lambda row: total_of(row.completion)),
            (
                ("truncation=bootstrap", "truncation.mode=replace"),
                lambda row: 0.0 if row.is_truncated else total_of(row.completion),
            ),
            (
                ("truncation=eos_penalty", "truncation.penalty=0.7"),
                lambda row: total_of(row.completion) - 0.7 * row.is_truncated,
            ),
            (
                ("truncation=eos_penalty", "truncation.penalty=0.7", "truncation.mode=replace"),
                lambda row: -0.7 if row.is_truncated else total_of(row.completion),
            ),
            (
                ("truncation=soft_overlong", "truncation.penalty=0.5", "truncation.cache=3"),
                # A ramp over the last three of six tokens.
                lambda row: total_of(row.completion) - 0.5 * max(0, len(row.completion) - 3) / 3,
            ),
        ],
        ids=["bootstrap", "bootstrap instead", "subtract", "replace", "soft_overlong"],
    )
    def test_whatever_being_cut_off_means(self, rollouts, policy: tuple[str, ...], total) -> None:
        run = rollouts(*policy, "kl.coef=0.3")
        (rows,), (output,) = run.rows, run.outputs
        assert {row.is_truncated for row in rows} == {True, False}
        is_bootstrapped = policy[0] == "truncation=bootstrap"
        raw = raw_advantages(rows, [total(row) for row in rows], coef=0.3, is_bootstrapped=is_bootstrapped)
        assert_rows(output["advantages"], whitened(raw))
        none = raw_advantages(rows, [total_of(row.completion) for row in rows], coef=0.3)
        with pytest.raises(AssertionError):  # control: it is not what `none` gives
            assert_rows(output["advantages"], whitened(none))

    def test_bootstrap_differs_from_none_in_truncated_rows_alone(self, rollouts) -> None:
        unscaled = "trainer.args.whiten_advantages=false"
        none = rollouts(unscaled, "truncation=none", name="none")
        bootstrap = rollouts(unscaled, "truncation=bootstrap", name="bootstrap")
        (rows,) = none.rows
        assert [row.completion for row in rows] == [row.completion for row in bootstrap.rows[0]]
        # Both runs compute the same values from the same shapes: where nothing is bootstrapped no bit differs.
        by = (none.outputs[0]["advantages"] - bootstrap.outputs[0]["advantages"]).abs().amax(dim=1)
        assert (by != 0).tolist() == [row.is_truncated for row in rows]
        added = [GAMMA * row.values[-1] for row in rows if row.is_truncated]
        assert by[by != 0].tolist() == pytest.approx([abs(value) for value in added], **MODEL)
        assert max(abs(value) for value in added) > 0.01
        value = bootstrap.events[0]["rewards/truncation/bootstrap_value"]
        assert value == pytest.approx(statistics.fmean(added), **MODEL)

    def test_an_excluded_row_has_no_tokens_and_no_place_in_whitening(self, rollouts) -> None:
        none = rollouts("truncation=none", "kl.coef=0.3", name="none")
        exclude = rollouts("truncation=exclude", "kl.coef=0.3", name="exclude")
        (whole,), (rows,), (output,) = none.rows, exclude.rows, exclude.outputs
        kept = [row for row in whole if not row.is_truncated]
        assert [row.completion for row in rows] == [[] if row.is_truncated else row.completion for row in whole]
        raw = iter(whitened(raw_advantages(kept, [total_of(row.completion) for row in kept], coef=0.3)))
        expected = [[] if row.is_truncated else next(raw) for row in whole]
        assert_rows(output["advantages"], expected)
        assert output["num_items_in_batch"] == sum(len(row.completion) for row in kept)

    def test_a_short_row_that_the_dataset_calls_cut_goes_on_with_its_own_last_value(self, rollouts, workplace) -> None:
        lines = [json.dumps({"prompt": f"{number}+1=", "is_truncated": True}) for number in range(5, 21)]
        (workplace / "rows.jsonl").write_text("\n".join(lines))
        data = ("data=file", "data.path=./rows.jsonl", "~data.args.num_rows")
        run = rollouts("truncation=bootstrap", "kl.where=none", *data)
        (rows,) = run.rows
        assert len({len(row.completion) for row in rows}) > 2
        expected = []
        for row in rows:
            rewards = [0.0] * (len(row.completion) - 1) + [total_of(row.completion)]
            expected.append(gae_of(rewards, row.values[:-1], row.values[-1], GAMMA, LAMBDA))
        assert_rows(run.outputs[0]["advantages"], whitened(expected))

    def test_tokens_that_a_tool_wrote_are_no_actions(self, rollouts, before_training) -> None:
        """Every second token is a tool's: the next state is that of the next action, and KL is of actions alone."""

        def prepare(trainer: Any) -> None:
            generate = trainer._generate

            def with_tools(prompts: list[Any]) -> tuple[Any, ...]:
                found = list(generate(prompts))
                found[2] = [[1 - place % 2 for place in range(len(ids))] for ids in found[1]]
                return tuple(found)

            trainer._generate = with_tools

        before_training(prepare)
        run = rollouts("kl.coef=0.3", "truncation=bootstrap", "trainer.args.num_iterations=2")
        (rows,), (output,) = run.rows, run.outputs
        expected = []
        for row in rows:
            kls, values = row.kl[::2], row.values[:-1:2]
            rewards = [-0.3 * kl for kl in kls]
            rewards[-1] += total_of(row.completion)
            last = row.values[-1] if row.is_truncated else 0.0
            expected.append(gae_of(rewards, values, last, GAMMA, LAMBDA))
        spread = [[value for one in row for value in (one, 0.0)] for row in whitened(expected)]
        expected = [values[: len(row.completion)] for values, row in zip(spread, rows, strict=True)]
        assert_rows(output["advantages"], expected)
        assert output["num_items_in_batch"] == sum((len(row.completion) + 1) // 2 for row in rows)
        kls = [kl for row in rows for kl in row.kl[::2]]
        assert run.events[0]["kl/k1_policy_ref"] == pytest.approx(statistics.fmean(kls), **MODEL)

    def test_a_later_round_is_of_the_models_as_they_are_then(self, rollouts) -> None:
        run = rollouts("trainer.args.max_steps=4", "truncation=bootstrap", "critic.learning_rate=0.1")
        first, second = run.rows
        totals = [total_of(row.completion) for row in second]
        raw = raw_advantages(second, totals, coef=0.05, is_bootstrapped=True)
        assert_rows(run.outputs[1]["advantages"], whitened(raw))
        # Control: the critic has moved, and the first round's would be told apart.
        assert abs(statistics.fmean(r.values[0] for r in first) - statistics.fmean(r.values[0] for r in second)) > 1e-2

    def test_what_is_logged_about_it(self, rollouts) -> None:
        run = rollouts("truncation=bootstrap", "kl.coef=0.3")
        ((rows,), event) = run.rows, run.events[0]
        totals = [total_of(row.completion) for row in rows]
        raw = raw_advantages(rows, totals, coef=0.3, is_bootstrapped=True)
        advantages = [value for row in raw for value in row]
        values = [value for row in rows for value in row.values[:-1]]
        returns = [a + v for a, v in zip(advantages, values, strict=True)]
        kls = [kl for row in rows for kl in row.kl]
        penalty = statistics.fmean(-0.3 * sum(row.kl) for row in rows)
        expected = {
            "ppo/returns_mean": statistics.fmean(returns),
            "ppo/returns_std": statistics.stdev(returns),
            "ppo/values_mean": statistics.fmean(values),
            "ppo/advantages_mean": statistics.fmean(advantages),
            "ppo/advantages_std": statistics.stdev(advantages),
            "ppo/explained_variance": 1 - statistics.variance(advantages) / statistics.variance(returns),
            "kl/k1_policy_ref": statistics.fmean(kls),
            "kl/k3_policy_ref": statistics.fmean(math.exp(-kl) - 1 + kl for kl in kls),
            "kl/k1_policy_ref_per_row": sum(kls) / len(rows),
            "kl/coef": 0.3,
            "rewards/kl/weighted_mean": penalty,
            "reward": statistics.fmean(totals),
            "ppo/rlhf_reward": statistics.fmean(totals) + penalty,
            "rewards/truncation/fraction": statistics.fmean(row.is_truncated for row in rows),
        }
        found = {name: event[name] for name in expected}
        assert found == pytest.approx(expected, **MODEL)
        assert "frac_reward_zero_std" not in event


class TestShares:
    """GAE is linear: with one component's rewards alone it gives that component's part of every advantage."""

    @pytest.mark.parametrize("whiten", ["true", "false"])
    def test_equal_brute_force_and_add_up(self, rollouts, whiten: str) -> None:
        settings = ("truncation=eos_penalty", "kl.coef=0.3", f"trainer.args.whiten_advantages={whiten}")
        run = rollouts(*settings)
        (rows,), event = run.rows, run.events[0]
        parts = {
            "first": lambda row: ([0.0] * (len(row.kl) - 1) + [row.completion[0] % 5 / 4], None),
            "length": lambda row: ([0.0] * (len(row.kl) - 1) + [0.5 * len(row.completion) / 3], None),
            "truncation": lambda row: ([0.0] * (len(row.kl) - 1) + [-1.0 * row.is_truncated], None),
            "kl": lambda row: ([-0.3 * kl for kl in row.kl], None),
            "value": lambda row: ([0.0] * len(row.kl), row.values[:-1]),
        }
        alone = {}
        for name, part in parts.items():
            alone[name] = []
            for row in rows:
                rewards, values = part(row)
                alone[name] += gae_of(rewards, values or [0.0] * len(rewards), 0.0, GAMMA, LAMBDA)
        raw = [sum(values) for values in zip(*alone.values(), strict=True)]
        used = whitened([raw])[0] if whiten == "true" else raw
        energy = sum(a * b for a, b in zip(raw, used, strict=True))
        expected = {
            f"rewards/{name}/advantage_share": sum(p * a for p, a in zip(values, used, strict=True)) / energy
            for name, values in alone.items()
        }
        found = {name: value for name, value in event.items() if name.endswith("/advantage_share")}
        assert found == pytest.approx(expected, abs=1e-4)
        assert sum(found.values()) == pytest.approx(1.0, abs=1e-6)


class TestEvaluation:
    EVERY_STEP = ("data.eval.fraction=0.25", "trainer.args.eval_strategy=steps", "trainer.args.eval_steps=1")

    def test_is_of_the_models_as_they_are_and_moves_no_coefficient(self, rollouts) -> None:
        run = rollouts(*self.EVERY_STEP, "kl.controller={target: 1.5, horizon: 400}", "kl.coef=0.3")
        training, evaluations = run.rows[0], run.rows[1:]
        assert len(training) == 16
        assert {len(rows) for rows in evaluations} == {8}
        divergence = statistics.fmean(sum(row.kl) for row in training)
        coef = 0.3 * (1 + min(max(divergence / 1.5 - 1, -0.2), 0.2) * 16 / 400)
        assert run.trainer.kl.coef == pytest.approx(coef, **MODEL)
        for rows, output in zip(evaluations, run.outputs[1:], strict=True):
            totals = [total_of(row.completion) for row in rows]
            assert_rows(output["advantages"], whitened(raw_advantages(rows, totals, coef=coef)))

    def test_of_more_rows_than_a_round(self, rollouts) -> None:
        small = ("trainer.args.per_device_train_batch_size=4", "trainer.args.steps_per_generation=1")
        run = rollouts(*self.EVERY_STEP, *small)
        assert {len(rows) for rows in run.rows} == {4, 8}


# --- gradients ---


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


@pytest.fixture
def steps(rollouts, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Step]]:
    """`steps(*overrides)`: a small run's optimizer steps, with the gradients as they were before they were clipped."""
    taken: list[Step] = []
    window: list[dict[str, Any]] = []
    compute_loss, step = WithCritic._compute_loss, SeparateCritic.step
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
                plain(trainer.model, AutoModelForCausalLM),
                plain(self.model, AutoModelForTokenClassification),
                gradient_of(trainer.model),
                gradient_of(self.model),
            )
        )
        window.clear()
        return step(self)

    monkeypatch.setattr(WithCritic, "_compute_loss", compute_spied)
    monkeypatch.setattr(SeparateCritic, "step", step_spied)

    def run(*overrides: str, **named: Any) -> list[Step]:
        rollouts(*overrides, **named)
        return taken

    return run


def token_losses(
    step: Step, batch: dict[str, Any], beta: float, clip: float | None, *, is_corrected: bool = True
) -> list[tuple[Tensor, Tensor]]:
    """(policy losses, critic losses) of the tokens, a row each. `is_corrected`: the KL is weighed with the ratio."""
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
        values, before, returns = (
            values_of(step.critic, prompt, completion)[:-1],
            given("rollout_values"),
            given("returns"),
        )
        critic = (values - returns) ** 2
        if clip is not None:
            critic = torch.maximum(critic, (before + (values - before).clamp(-clip, clip) - returns) ** 2)
        found.append((policy, 0.5 * critic))
    return found


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
        largest = max(one.abs().max() for one in expected.values())
        assert largest > 1e-4
        for name, one in expected.items():
            torch.testing.assert_close(found[name], one, atol=2e-5 * float(largest), rtol=1e-4)


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
        """TRL weighs k3 with the ratio to the rollout's policy unless it is told not to (arXiv 2512.02556)."""
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


# --- rewards that are not one number a row ---


class TestDense:
    """Token rewards under PPO: completions that are given, so that it is known where each reward belongs."""

    def test_every_reward_lies_on_its_token(self, rollouts) -> None:
        """A dense reward beside a plain one, and a penalty: all in one row's tokens, which sum to its total."""
        rewards = ("++rewards.each={fn: './mine.py:each', weight: 0.5}", PLAIN[0])
        settings = ("truncation=eos_penalty", "truncation.penalty=0.7", "kl.coef=0.3")
        run = rollouts(*settings, rewards=rewards)
        (rows,), ((rollout, _),), (settled,) = run.rows, run.found, run.settled
        assert settled.names == ("each", "first", "truncation")
        expected = []
        for number, row in enumerate(rows):
            ids = row.completion
            dense = [0.0 if token % 3 == 0 else 0.5 * (token % 7 - 3.0) for token in ids]
            assert_rows(rollout.scores[0, number : number + 1], [dense])
            rewards_of_row = [one - 0.3 * kl for one, kl in zip(dense, row.kl, strict=True)]
            rewards_of_row[-1] += ids[0] % 5 / 4 - 0.7 * row.is_truncated
            total = rollout.scores[:, number].sum().item()
            assert total == pytest.approx(settled.totals[number].item(), **ARITHMETIC)
            expected.append(gae_of(rewards_of_row, row.values[:-1], 0.0, GAMMA, LAMBDA))
        assert_rows(run.outputs[0]["advantages"], whitened(expected))

    def test_without_dense_the_sum_lies_on_the_last_token(self, rollouts) -> None:
        rewards = ("++rewards.each={fn: './mine.py:each', weight: 0.5}",)
        run = rollouts("trainer.dense=false", "kl.where=none", rewards=rewards)
        ((rows,),) = (run.rows,)
        totals = [sum(0.5 * (token % 7 - 3.0) for token in row.completion if token % 3) for row in rows]
        assert_rows(run.outputs[0]["advantages"], whitened(raw_advantages(rows, totals)))

    def test_speakers(self, train_ppo, prepared, monkeypatch: pytest.MonkeyPatch) -> None:
        """Every byte of the line with the larger number gains its part of 1, every one of the other loses it."""
        found: list[Any] = []
        set_advantages = WithCritic._set_advantages

        def spied(self: Any, output: dict[str, Any]) -> Any:
            shares = set_advantages(self, output)
            found.append((self._found[0], self._settled))
            return shares

        monkeypatch.setattr(WithCritic, "_set_advantages", spied)
        texts: list[str] = []

        def speak(self: Any, prompt_ids: list[list[int]], *args: Any, **named: Any) -> tuple[list[list[int]], None]:
            completions = []
            for row, ids in enumerate(prompt_ids):
                first, _, second = self.processing_class.decode(ids).rstrip(":").partition(" and ")
                texts.append((f"{first}: 3\n{second}: 5", f"{first}: 8\n{second}: 1", "no form")[row % 3])
                completions.append([*self.processing_class.encode(texts[-1]), EOS])
            return completions, None

        monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", speak)
        code, _ = train_ppo(
            *DROP,
            "data=toy_speakers",
            "++rewards.larger={fn: 'rlhf_cli.rewards.toy:speakers_larger', spread: even}",
            "++rewards.second_larger={fn: 'rlhf_cli.rewards.toy:second_is_larger', weight: 0.0}",
            "trainer.args.max_steps=1",
            "trainer.args.per_device_train_batch_size=3",
            "trainer.args.max_completion_length=40",
            name="speakers",
        )
        assert code == 0
        ((rollout, settled),) = found
        assert settled.names == ("larger", "second_larger")
        for row, text in enumerate(texts):
            if row % 3 == 2:
                expected = [0.0] * len(text) + [-1.0]
            else:
                lines = text.split("\n")
                sign = 1.0 if row % 3 else -1.0
                expected = [sign / len(lines[0])] * len(lines[0]) + [0.0]
                expected += [-sign / len(lines[1])] * len(lines[1]) + [0.0]
            assert_rows(rollout.scores[0, row : row + 1], [expected])
            assert sum(expected) == pytest.approx(settled.totals[row].item(), **ARITHMETIC)
        assert not rollout.scores[1].any()


class TestExclude:
    def test_a_closed_gate_adds_nothing(self, rollouts) -> None:
        """TRL's groups would want the group's mean in its place; here there are none, and 0 it is."""
        gate = "gate: {by: odd, at_least: 1.0, otherwise: exclude}"
        rewards = ("++rewards.odd={fn: './mine.py:odd'}", f"++rewards.two={{fn: './mine.py:two', {gate}}}")
        run = rollouts("kl.where=none", rewards=rewards)
        ((rows,),) = (run.rows,)
        totals = [3.0 if row.completion[0] % 2 else 0.0 for row in rows]
        assert set(totals) == {0.0, 3.0}
        assert_rows(run.outputs[0]["advantages"], whitened(raw_advantages(rows, totals)))
        assert run.events[0]["reward"] == pytest.approx(statistics.fmean(totals), **ARITHMETIC)
        assert run.events[0]["rewards/two/mean"] == 2.0

    def test_a_row_to_which_nothing_applies_is_not_there(self, rollouts) -> None:
        run = rollouts("kl.coef=0.3", rewards=("++rewards.odd_only={fn: './mine.py:odd_only'}",))
        ((rows,),) = (run.rows,)
        kept = [row for row in rows if row.completion]
        assert 0 < len(kept) < len(rows)
        totals = [1.0 + len(row.completion) for row in kept]
        raw = iter(whitened(raw_advantages(kept, totals, coef=0.3)))
        assert_rows(run.outputs[0]["advantages"], [next(raw) if row.completion else [] for row in rows])
        event = run.events[0]
        assert event["reward"] == pytest.approx(statistics.fmean(totals), **ARITHMETIC)
        divergence = statistics.fmean(sum(row.kl) for row in kept)
        assert event["kl/k1_policy_ref_per_row"] == pytest.approx(divergence, **MODEL)


class TestKl:
    def test_the_coefficient_follows_the_divergence(self, rollouts) -> None:
        settings = ("trainer.args.steps_per_generation=1", "trainer.args.max_steps=3")
        run = rollouts("kl.coef=0.3", "kl.controller={target: 1.5, horizon: 40}", *settings)
        coef = 0.3
        for rows, event, output in zip(run.rows, run.events, run.outputs, strict=True):
            assert event["kl/coef"] == pytest.approx(coef, **MODEL)
            totals = [total_of(row.completion) for row in rows]
            assert_rows(output["advantages"], whitened(raw_advantages(rows, totals, coef=coef)))
            divergence = statistics.fmean(sum(row.kl) for row in rows)
            coef *= 1 + min(max(divergence / 1.5 - 1, -0.2), 0.2) * len(rows) / 40
        assert run.trainer.kl.coef == pytest.approx(coef, **MODEL)
        assert coef != pytest.approx(0.3, rel=1e-2)

    def test_the_coefficient_counts_the_rows_it_was_measured_on(self, rollouts) -> None:
        run = rollouts("truncation=exclude", "kl.controller={target: 1.5, horizon: 40}", "kl.coef=0.3")
        kept = [row for row in run.rows[0] if row.completion]
        assert len(kept) < len(run.rows[0])
        divergence = statistics.fmean(sum(row.kl) for row in kept)
        expected = 0.3 * (1 + min(max(divergence / 1.5 - 1, -0.2), 0.2) * len(kept) / 40)
        assert run.trainer.kl.coef == pytest.approx(expected, **MODEL)

    def test_a_round_without_a_row_leaves_the_coefficient_as_it_is(self, rollouts, says) -> None:
        """At the beginning of training it may well be that every completion is cut off."""
        says([100] * LIMIT)
        run = rollouts("truncation=exclude", "kl.controller={target: 1.5, horizon: 40}")
        assert run.trainer.kl.coef == 0.05

    @pytest.mark.parametrize(("where", "beta"), [("reward", 0.0), ("loss", 0.3), ("none", 0.0)])
    def test_counts_once(self, rollouts, monkeypatch: pytest.MonkeyPatch, where: str, beta: float) -> None:
        """In TRL's loss only where it is not in the reward; the reward's part is held by TestRollout."""
        seen: list[float] = []
        compute_loss = GRPOTrainer._compute_loss

        def spied(self: Any, model: Any, inputs: Any) -> Tensor:
            seen.append(self.beta)
            assert ("ref_per_token_logps" in inputs) == (where == "loss")
            return compute_loss(self, model, inputs)

        monkeypatch.setattr(GRPOTrainer, "_compute_loss", spied)
        run = rollouts(f"kl.where={where}", *(() if where == "none" else ("kl.coef=0.3",)))
        assert seen == [beta, beta]
        assert ("kl" in run.events[0]) == (where == "loss")
        assert ("rewards/kl/weighted_mean" in run.events[0]) == (where == "reward")
        assert (run.trainer.ref_model is None) == (where == "none")
