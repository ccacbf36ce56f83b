"""What being cut off means, in real GRPO and RLOO runs: four completions that are given, and advantages by hand."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import torch
from torch import Tensor

from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.stack.truncation import find_truncated
from rlhf_cli.trainers.stacked_rewards import WithRewardStack
from tests.support.tolerances import ARITHMETIC

PAD, EOS, OTHER_EOS = 0, 1, 99
LIMIT = 4
ROWS = ([50, 51, EOS], [60, 61, 62, 63], [70, 71, 72, EOS], [80, 81, 82, 83])
"""Short and ended; cut; exactly at the limit and ended; cut."""
SCORES = {50: 1.0, 60: 2.0, 70: 3.0, 80: 6.0}

REWARDS = f"""
SCORES = {SCORES}

def score(completion_ids, **kwargs):
    return [SCORES.get(ids[0], 40.0) for ids in completion_ids]

def not_second(completion_ids, **kwargs):
    return [None if ids[0] == 60 else SCORES[ids[0]] for ids in completion_ids]

def one(completion_ids, **kwargs):
    return [1.0 if ids[0] < 65 else 0.0 for ids in completion_ids]

def doubled(rewards, weights):
    return [2.0 * value for value in rewards["score"]]
"""
PENALTY = ("truncation=eos_penalty", "truncation.penalty=1.0")
REPLACE = (*PENALTY, "truncation.mode=replace")
RAMP = ("truncation=soft_overlong", "truncation.cache=2")


class Seen:
    """What the last run ended with."""

    trainer: Any
    folder: RunFolder
    outputs: list[dict[str, Any]]
    losses: list[float]

    @property
    def event(self) -> dict[str, Any]:
        return read_metrics(self.folder.metrics)[0]

    @property
    def advantages(self) -> list[float]:
        table = pyarrow.parquet.read_table(self.folder.path / "completions" / "completions_00001.parquet")
        return table.to_pydict()["advantage"]

    @property
    def weights(self) -> Tensor:
        return torch.cat([one.detach().flatten() for one in self.trainer.model.parameters()])


@pytest.fixture
def group(train, workplace: Path, before_training, says, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Seen]:
    """`group(*overrides)`: one step on one group of ROWS, or of the completions given."""
    (workplace / "mine.py").write_text(REWARDS)
    seen = Seen()
    generate_and_score = WithRewardStack._generate_and_score_completions

    def prepare(trainer: Any) -> None:
        seen.trainer = trainer
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():  # away from the reference, so that a KL has a gradient
            for parameter in trainer.model.parameters():
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
        compute_loss = trainer._compute_loss

        def compute_spied(model: Any, inputs: Any) -> Tensor:
            loss = compute_loss(model, inputs)
            seen.losses.append(loss.item())
            return loss

        trainer._compute_loss = compute_spied

    def spied(self: Any, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = generate_and_score(self, inputs)
        seen.outputs.append(dict(output))
        return output

    before_training(prepare)
    monkeypatch.setattr(WithRewardStack, "_generate_and_score_completions", spied)

    def run(
        *overrides: str,
        rows: tuple[list[int], ...] = ROWS,
        rewards: tuple[str, ...] = ("++rewards.score={fn: './mine.py:score'}",),
        name: str = "one",
    ) -> Seen:
        says(*rows)
        seen.outputs, seen.losses = [], []
        code, seen.folder = train(
            "~rewards.correct",
            "~rewards.format",
            "~rewards.brevity",
            *rewards,
            "trainer.args.per_device_train_batch_size=4",
            f"trainer.args.max_completion_length={LIMIT}",
            "trainer.args.max_steps=1",
            *overrides,
            name=name,
        )
        assert code == 0
        return seen

    return run


def grpo(totals: list[float | None]) -> list[float]:
    """Without scaling; None is not there."""
    present = [total for total in totals if total is not None]
    return [0.0 if total is None else total - sum(present) / len(present) for total in totals]


def rloo(totals: list[float | None]) -> list[float]:
    present = [total for total in totals if total is not None]
    return [0.0 if t is None else t - (sum(present) - t) / (len(present) - 1) for t in totals]


ADVANTAGES = {"grpo": (grpo, "trainer.args.scale_rewards=none"), "rloo": (rloo, "trainer.args.beta=0.0")}


class TestWorkedExample:
    """Scores 1, 2, 3, 6, of which the second and the fourth are cut."""

    @pytest.mark.parametrize("trainer", ["grpo", "rloo"])
    @pytest.mark.parametrize(
        ("policy", "totals"),
        [
            (("truncation=none",), [1.0, 2.0, 3.0, 6.0]),
            (PENALTY, [1.0, 1.0, 3.0, 5.0]),
            (REPLACE, [1.0, -1.0, 3.0, -1.0]),
            # The ramp begins behind two tokens: three pay a half, four pay all, ended or not.
            (RAMP, [0.5, 1.0, 2.0, 5.0]),
            (("truncation=exclude",), [1.0, None, 3.0, None]),
        ],
        ids=["none", "subtract", "replace", "soft_overlong", "exclude"],
    )
    def test_advantages(self, group, trainer: str, policy: tuple[str, ...], totals: list[float | None]) -> None:
        by_hand, setting = ADVANTAGES[trainer]
        run = group(f"trainer={trainer}", setting, *policy)
        assert run.advantages == pytest.approx(by_hand(totals), **ARITHMETIC)
        present = [total for total in totals if total is not None]
        assert run.event["reward"] == pytest.approx(sum(present) / len(present), **ARITHMETIC)

    def test_scaled_by_the_group(self, group) -> None:
        run = group(*PENALTY)
        deviation = (sum(value**2 for value in (-1.5, -1.5, 0.5, 2.5)) / 3) ** 0.5 + 1e-4
        assert run.advantages == pytest.approx([value / deviation for value in (-1.5, -1.5, 0.5, 2.5)], **ARITHMETIC)

    @pytest.mark.parametrize(
        ("policy", "added", "after"),
        [(PENALTY, [0.0, -1.0, 0.0, -1.0], 3.0), (REPLACE, [0.0, -3.0, 0.0, -7.0], -1.0)],
        ids=["subtract", "replace"],
    )
    def test_what_is_logged(self, group, policy: tuple[str, ...], added: list[float], after: float) -> None:
        run = group(*policy)
        event = run.event
        assert event["rewards/truncation/fraction"] == 0.5
        assert event["rewards/truncation/score_before"] == pytest.approx(4.0, **ARITHMETIC)
        assert event["rewards/truncation/score_after"] == pytest.approx(after, **ARITHMETIC)
        assert event["rewards/truncation/mean"] == pytest.approx(sum(added) / 4, **ARITHMETIC)
        assert event["rewards/score/mean"] == pytest.approx(3.0, **ARITHMETIC)
        assert event["reward"] == pytest.approx(3.0 + sum(added) / 4, **ARITHMETIC)
        shares = [event[f"rewards/{name}/advantage_share"] for name in ("score", "truncation")]
        assert sum(shares) == pytest.approx(1.0, **ARITHMETIC)
        table = pyarrow.parquet.read_table(run.folder.path / "completions" / "completions_00001.parquet").to_pydict()
        assert table["truncation"] == pytest.approx(added, **ARITHMETIC)
        assert table["score"] == pytest.approx([1.0, 2.0, 3.0, 6.0], **ARITHMETIC)

    def test_without_a_policy_the_fraction_is_logged_all_the_same(self, group) -> None:
        event = group().event
        assert event["rewards/truncation/fraction"] == 0.5
        assert (
            event["rewards/truncation/score_before"]
            == event["rewards/truncation/score_after"]
            == pytest.approx(4.0, **ARITHMETIC)
        )
        assert "rewards/truncation/mean" not in event

    @pytest.mark.parametrize("trainer", ["grpo", "rloo"])
    def test_shares_of_the_penalty_by_hand(self, group, trainer: str) -> None:
        by_hand, setting = ADVANTAGES[trainer]
        event = group(f"trainer={trainer}", setting, *PENALTY).event
        whole, part = by_hand([1.0, 1.0, 3.0, 5.0]), by_hand([0.0, -1.0, 0.0, -1.0])
        expected = sum(p * a for p, a in zip(part, whole, strict=True)) / sum(a * a for a in whole)
        assert event["rewards/truncation/advantage_share"] == pytest.approx(expected, **ARITHMETIC)
        assert event["rewards/score/advantage_share"] == pytest.approx(1 - expected, **ARITHMETIC)


class TestOtherTotals:
    @pytest.mark.parametrize("trainer", ["grpo", "rloo"])
    def test_a_row_to_which_nothing_applies_stays_so(self, group, trainer: str) -> None:
        by_hand, setting = ADVANTAGES[trainer]
        rewards = ("++rewards.score={fn: './mine.py:not_second'}",)
        run = group(f"trainer={trainer}", setting, *PENALTY, rewards=rewards)
        assert run.advantages == pytest.approx(by_hand([1.0, None, 3.0, 5.0]), **ARITHMETIC)
        assert run.event["reward"] == pytest.approx(3.0, **ARITHMETIC)
        lengths = sorted(run.outputs[0]["completion_mask"].sum(dim=1).tolist())
        assert lengths == [0, 3, 4, 4]

    @pytest.mark.parametrize(
        ("policy", "totals"), [(PENALTY, [2.0, 3.0, 6.0, 11.0]), (REPLACE, [2.0, -1.0, 6.0, -1.0])]
    )
    def test_of_a_custom_aggregate(self, group, policy: tuple[str, ...], totals: list[float | None]) -> None:
        run = group(*policy, "aggregate=./mine.py:doubled", "trainer.args.scale_rewards=none")
        assert run.advantages == pytest.approx(grpo(totals), **ARITHMETIC)
        assert run.event["reward"] == pytest.approx(sum(total or 0.0 for total in totals) / 4, **ARITHMETIC)

    def test_of_normalize_then_sum(self, group) -> None:
        """Scores and ones z-scored in the group; the penalty of 1 then counts as one deviation."""
        rewards = ("++rewards.score={fn: './mine.py:score'}", "++rewards.one={fn: './mine.py:one', weight: 0.5}")
        run = group(*PENALTY, "aggregate=normalize_then_sum", rewards=rewards)
        first = [(value - 3) / ((14 / 3) ** 0.5 + 1e-4) for value in (1, 2, 3, 6)]
        second = [(value - 0.5) / ((1 / 3) ** 0.5 + 1e-4) for value in (1, 1, 0, 0)]
        totals = [a + 0.5 * b - cut for a, b, cut in zip(first, second, (0, 1, 0, 1), strict=True)]
        centred = grpo(totals)
        deviation = (sum(value**2 for value in centred) / 3) ** 0.5 + 1e-4
        assert run.advantages == pytest.approx([value / deviation for value in centred], **ARITHMETIC)
        shares = [run.event[f"rewards/{name}/advantage_share"] for name in ("score", "one", "truncation")]
        assert sum(shares) == pytest.approx(1.0, **ARITHMETIC)


class TestExclude:
    """A row that is left out has no tokens in the loss, whatever it said and scored."""

    def test_mask_and_token_count(self, group) -> None:
        output = group("truncation=exclude").outputs[0]
        assert output["completion_mask"].sum(dim=1).tolist() == [3, 0, 4, 0]
        assert output["num_items_in_batch"] == 7
        assert group("truncation=none", name="none").outputs[0]["num_items_in_batch"] == 15

    @pytest.mark.parametrize("trainer", ["grpo", "rloo"])
    def test_what_it_said_changes_no_weight(self, group, trainer: str) -> None:
        """With beta > 0 and a second epoch: the KL would push it, and did before its mask was zero."""
        settings = (f"trainer={trainer}", "trainer.args.beta=0.5", "trainer.args.num_iterations=2")
        once = ("trainer.args.max_steps=2", "trainer.args.normalize_advantages=true")[: 2 if trainer == "rloo" else 1]
        others = (ROWS[0], [200, 201, 202, 203], ROWS[2], [210, 211, 212, 213])
        ends = {}
        for policy in ("exclude", "none"):
            for name, rows in (("rows", ROWS), ("others", others)):
                run = group(*settings, *once, f"truncation={policy}", rows=rows, name=f"{policy}-{name}")
                ends[policy, name] = run.weights
        assert torch.equal(ends["exclude", "rows"], ends["exclude", "others"])
        assert not torch.equal(ends["none", "rows"], ends["none", "others"])

    @pytest.mark.parametrize("trainer", ["grpo", "rloo", "ppo"])
    def test_nothing_left_nothing_learned(self, group, trainer: str) -> None:
        settings = ("kl.where=loss",) if trainer == "ppo" else ("trainer.args.beta=0.5",)
        settings += ("trainer.args.num_generations=4", "trainer.args.steps_per_generation=1")
        run = group(f"trainer={trainer}", *settings, "truncation=exclude", "trainer.args.max_steps=2", rows=ROWS[1::2])
        assert series(read_metrics(run.folder.metrics), "grad_norm")[1] == [0.0, 0.0]

    @pytest.mark.parametrize("trainer", ["grpo", "rloo", "ppo"])
    def test_a_long_row_leaves_weights_and_loss_finite(self, group, trainer: str) -> None:
        """The rollout's log-probability of a whole row is soon below -88, where exp(0 - logp) is infinite."""
        rows = tuple([*row[:-1], *range(100, 140), row[-1]] for row in ROWS)
        settings = (
            "trainer.args.max_completion_length=44",
            "trainer.args.num_iterations=2",
            "trainer.args.max_steps=2",
        )
        steps = ("trainer.args.steps_per_generation=1",)
        run = group(f"trainer={trainer}", *settings, *steps, "truncation=exclude", rows=rows)
        assert run.event["rewards/truncation/fraction"] == 0.5
        assert run.weights.isfinite().all()
        assert torch.tensor(run.losses).isfinite().all()  # the Trainer logs 0 for NaN


class TestDetection:
    @pytest.mark.parametrize(
        ("ids", "flag", "expected"),
        [
            ([5, 6, 7, 8], None, True),
            ([5, 6, 7, EOS], None, False),
            ([5, 6, 7, OTHER_EOS], None, False),
            ([5, 6, 7], None, False),  # a stop string, or an environment that was done
            ([5, EOS, 7, 8], None, True),
            ([5, 6], True, True),
            ([5, 6, 7, EOS], True, True),
            ([5, 6, 7, 8], False, True),
            ([], None, False),
        ],
    )
    def test_of_one_row(self, ids: list[int], flag: Any, expected: bool) -> None:
        assert find_truncated([ids], {EOS, OTHER_EOS}, LIMIT, [flag]) == [expected]

    def test_every_ending_that_the_model_declares(
        self, group, workplace: Path, model_cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rows = (ROWS[0], [60, 61, 62, OTHER_EOS], ROWS[2], ROWS[3])
        settings = (*PENALTY, "trainer.args.scale_rewards=none")
        run = group(*settings, rows=rows, name="one-ending")
        assert run.advantages == pytest.approx(grpo([1.0, 1.0, 3.0, 5.0]), **ARITHMETIC)
        shutil.copytree(model_cache, workplace / "cache")
        for file in (workplace / "cache").glob("models/*/generation_config.json"):
            file.write_text(json.dumps({**json.loads(file.read_text()), "eos_token_id": [EOS, OTHER_EOS]}))
        monkeypatch.setenv("RLHF_CACHE", str(workplace / "cache"))
        run = group(*settings, rows=rows, name="two-endings")
        assert run.advantages == pytest.approx(grpo([1.0, 2.0, 3.0, 5.0]), **ARITHMETIC)

    def test_a_column_of_the_dataset(self, group, workplace: Path) -> None:
        lines = [json.dumps({"prompt": "1+1=", "is_truncated": True})] * 8
        (workplace / "rows.jsonl").write_text("\n".join(lines))
        run = group(*PENALTY, "data=file", "data.path=./rows.jsonl", "~data.args.num_rows")
        assert run.event["rewards/truncation/fraction"] == 1.0
        assert run.event["rewards/truncation/score_after"] == pytest.approx(2.0, **ARITHMETIC)

    def test_without_a_limit_what_does_not_end_was_cut_by_the_models_window(self, group) -> None:
        """TRL takes null there, and a short row without an ending is then not one that a stop string ended."""
        rows = (ROWS[0], [60, 61], *ROWS[2:])
        run = group("trainer.args.max_completion_length=null", rows=rows)
        assert run.event["rewards/truncation/fraction"] == 0.5

    @pytest.mark.parametrize("trainer", [("trainer=grpo",), ("trainer=grpo", "trainer.dense=true"), ("trainer=rloo",)])
    def test_in_an_evaluation_of_more_rows_than_a_round(self, group, trainer: tuple[str, ...]) -> None:
        """TRL's table holds as many rows as a round of training has."""
        evaluation = ("data.eval.fraction=0.5", "trainer.args.eval_strategy=steps", "trainer.args.eval_steps=1")
        run = group(*trainer, *evaluation, "trainer.args.per_device_eval_batch_size=16")
        fractions = series(read_metrics(run.folder.metrics), "eval_rewards/truncation/fraction")[1]
        assert fractions == [0.5]
