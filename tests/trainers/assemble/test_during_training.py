"""Evaluation while a policy trains: it says what `rlhf eval` says, training does not notice it, the best is kept."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import torch

from rlhf_cli.analysis.comparison.logged_run import read_figures
from rlhf_cli.cli import main
from rlhf_cli.display.run_tables import held_out
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.tables.metrics import is_of_the_clock
from rlhf_cli.trainers.evaluation_mixin import EvaluationMixin
from rlhf_cli.trainers.extensions import ExtendedTrainer
from tests.support.tolerances import ARITHMETIC
from tests.trainers.small_stages import SMALL_STAGE, TINY

pytestmark = pytest.mark.whole

EVERY_STEP = ["data.eval.fraction=0.25", "trainer.args.eval_strategy=steps", "trainer.args.eval_steps=1"]
FAST = ["trainer.args.learning_rate=0.1", "rewards.sum.fn=./sums.py:sums"]
"""So that three steps change what an untrained model answers, and the total with it."""
SUMS = "def sums(completion_ids, **kwargs):\n    return [sum(ids) / 1000 for ids in completion_ids]\n"
NUM_HELD_OUT, GENERATIONS = 16, 4


def evaluation(folder: RunFolder, step: int) -> dict[str, Any]:
    return read_json(folder.path / "eval" / "training" / f"step-{step}.json")


def of_training(folder: RunFolder) -> list[dict[str, Any]]:
    """Log events of training, without clocks."""
    events = [event for event in read_metrics(folder.metrics) if "loss" in event]
    return [{k: v for k, v in event.items() if not is_of_the_clock(k)} for event in events]


@pytest.mark.parametrize("trainer", ["rloo", "ppo"])
def test_the_greedy_half_is_what_rlhf_eval_says_of_the_same_weights(train, train_ppo, capsys, trainer: str) -> None:
    Path("sums.py").write_text(SUMS)
    run = train_ppo if trainer == "ppo" else train
    words = [] if trainer == "ppo" else [f"trainer={trainer}"]
    code, folder = run(*words, *EVERY_STEP, "trainer.args.num_generations_eval=4", *FAST)
    assert code == 0
    assert "step 3, held out: greedy " in capsys.readouterr().out
    during = evaluation(folder, 3)
    assert main(["eval", str(folder.path), "--samples", "0", "--json"]) == 0
    after = json.loads(capsys.readouterr().out)
    assert (during["rows"], during["kind"], during["data"]) == (NUM_HELD_OUT, "policy", "the 25% held out")
    assert during["parts"]["greedy"] == after["parts"]["greedy"]
    assert during["parts"]["sampled"]["total"]["count"] == NUM_HELD_OUT
    # It moves; otherwise the test above would pass with any weights.
    assert evaluation(folder, 1)["parts"]["greedy"] != during["parts"]["greedy"]
    # The same prompts were answered, each so often as it should be.
    lines = (folder.path / "eval" / "training" / "step-3.completions.jsonl").read_text().splitlines()
    asked = [(one["prompt"], one["part"], one["sample"]) for one in map(json.loads, lines)]
    assert len(set(asked)) == len(asked) == NUM_HELD_OUT * (1 + GENERATIONS)


def test_the_sampled_half_is_what_trl_measured(train) -> None:
    """Batches of three prompts, the last of one: what TRL logs is the mean over prompts, too."""
    _, folder = train(*EVERY_STEP, "trainer.args.per_device_eval_batch_size=12")
    (event,) = [event for event in read_metrics(folder.metrics) if "eval_reward" in event and event["step"] == 2]
    assert event["eval_sampled/total"] == pytest.approx(event["eval_reward"], **ARITHMETIC)
    for name in ("correct", "format", "brevity"):
        assert event[f"eval_sampled/rewards/{name}"] == pytest.approx(event[f"eval_rewards/{name}/mean"], **ARITHMETIC)
    assert event["eval_sampled/tokens"] == pytest.approx(event["eval_completions/mean_length"], **ARITHMETIC)
    assert event["eval_sampled/truncated"] == pytest.approx(event["eval_completions/clipped_ratio"], **ARITHMETIC)
    assert event["eval_pass@1/correct"] == pytest.approx(event["eval_rewards/correct/mean"], **ARITHMETIC)
    assert event["eval_pass@1/correct"] <= event["eval_pass@2/correct"] <= event["eval_pass@4/correct"]
    assert not any(name.startswith("eval_greedy/") and name.endswith("length") for name in event)


@pytest.mark.parametrize("as_rows", [False, True])
def test_a_smaller_last_batch_counts_by_its_rows(as_rows: bool) -> None:
    """TRL's trainers log means of batches; a trainer of rows is given tensors, one that generates a list of rows."""
    scores = torch.tensor([1.0, 0.0, 0.0, 1.0, torch.nan, torch.nan, 1.0])

    class Trl:
        def evaluation_loop(self) -> None:
            self._metrics: Any = {"eval": {"accuracy": [], "num_tokens": [7.0]}}
            for part in scores.split(2):
                self.prediction_step(None, [{"score": one} for one in part] if as_rows else {"score": part})

        def prediction_step(self, model: Any, inputs: Any) -> None:
            found = torch.stack([row["score"] for row in inputs]) if as_rows else inputs["score"]
            self._metrics["eval"]["accuracy"].append(found.mean().item())

    trainer: Any = type("Trainer", (ExtendedTrainer, Trl), {"model": torch.nn.Module()})()
    trainer.evaluation_loop()
    assert trainer._metrics["eval"] == {"accuracy": [pytest.approx(3 / 5)], "num_tokens": [7.0]}


def test_training_does_not_notice_that_it_is_evaluated(train, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "data.eval.fraction=0.25"
    plain = of_training(train(rows, name="plain")[1])
    assert of_training(train(*EVERY_STEP, name="evaluated")[1]) == plain
    # Negative control: without random numbers of its own it would.
    monkeypatch.setattr(EvaluationMixin, "_own_randomness", lambda self: contextlib.nullcontext())
    assert of_training(train(*EVERY_STEP, name="noticed")[1]) != plain


REWARDS = """
def a(completion_ids, **kwargs):
    return [sum(ids) / 1000 for ids in completion_ids]

def b(completion_ids, **kwargs):
    return [None if ids[0] % 2 else 0.3 for ids in completion_ids]

def smallest(rewards, weights):
    rows = zip(rewards["a"], rewards["b"])
    return [(a if b is None else min(a, b)) - 100.0 for a, b in rows]
"""
WORDS = (
    *("~rewards.correct", "~rewards.format", "~rewards.brevity", "aggregate=./mine.py:smallest"),
    *("+rewards.a.fn=./mine.py:a", "+rewards.b.fn=./mine.py:b", "trainer.args.max_steps=1", *EVERY_STEP),
)


def by_hand(ids: list[int]) -> float:
    """min(a, b) - 100, where b is 0.3 or does not apply, in which case it is a - 100."""
    a = sum(ids) / 1000
    return (a if ids[0] % 2 else min(a, 0.3)) - 100.0


def test_all_totals_are_the_aggregates(train, workplace: Path, capsys) -> None:
    (workplace / "mine.py").write_text(REWARDS)
    best = ("trainer.args.load_best_model_at_end=true", "trainer.args.metric_for_best_model=greedy/total")
    best += ("trainer.args.save_steps=1", "trainer.args.num_generations_eval=2")
    code, folder = train("trainer=rloo", *WORDS, *best)
    assert code == 0
    # In training: TRL's reward, and every row of its table.
    table = pyarrow.parquet.read_table(folder.path / "completions" / "completions_00001.parquet").to_pydict()
    scores = zip(table["a"], table["b"], strict=True)
    expected = [min(score for score in row if score is not None) - 100.0 for row in scores]
    assert table["total"] == pytest.approx(expected, **ARITHMETIC)
    assert {b is None for b in table["b"]} == {True, False}
    (event,) = [one for one in read_metrics(folder.metrics) if "loss" in one]
    assert event["reward"] < -90
    # While it trains: greedy, sampled, and what TRL itself measured of the sampled ones.
    written = folder.path / "eval" / "training" / "step-1.completions.jsonl"
    rows = [json.loads(line) for line in written.read_text().splitlines()]
    assert [row["total"] for row in rows] == pytest.approx([by_hand(row["completion_ids"]) for row in rows], abs=1e-9)
    assert {row["completion_ids"][0] % 2 for row in rows} == {0, 1}  # b applies to some and not to others
    (event,) = [one for one in read_metrics(folder.metrics) if "eval_greedy/total" in one]
    assert event["eval_greedy/total"] < -90
    assert event["eval_sampled/total"] == pytest.approx(event["eval_reward"], **ARITHMETIC)
    checkpoint = sorted(folder.checkpoints.iterdir())[-1]
    assert read_json(checkpoint / "trainer_state.json")["best_metric"] == event["eval_greedy/total"]
    capsys.readouterr()
    assert main(["eval", str(folder.path), "--samples", "0", "--json"]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert evaluated["parts"]["greedy"]["total"] == evaluation(folder, 1)["parts"]["greedy"]["total"]


# Several sets: each logs what a run logs that evaluates this set alone.

EASY = "{world: toy_sums, args: {num_rows: 6, max_value: 4, seed: 1}}"
HARD = "{world: toy_sums, args: {num_rows: 5, max_value: 60, seed: 2}}"
TWO = f"data.eval={{easy: {EASY}, hard: {HARD}}}"
TWO_STEPS = ["trainer.args.eval_strategy=steps", "trainer.args.eval_steps=1", "trainer.args.max_steps=2"]
BEST = ["trainer.args.save_steps=1", "trainer.args.load_best_model_at_end=true"]


def of_set(folder: RunFolder, prefix: str) -> list[dict[str, Any]]:
    """The log events of an evaluation set, without its prefix and without clocks."""
    events = [event for event in read_metrics(folder.metrics) if f"{prefix}runtime" in event]
    return [
        {name.removeprefix(prefix): value for name, value in event.items() if not is_of_the_clock(name)}
        for event in events
    ]


@pytest.mark.parametrize("trainer", ["grpo", "ppo"])
def test_each_set_is_evaluated_as_if_alone(train, train_ppo, capsys, trainer: str) -> None:
    run = train_ppo if trainer == "ppo" else train
    best = "trainer.args.metric_for_best_model=eval_hard_sampled/tokens"
    code, folder = run(TWO, *TWO_STEPS, *BEST, best)
    assert code == 0
    assert "step 2, held out easy: greedy" in capsys.readouterr().out
    table = held_out(read_metrics(folder.metrics), None, [])
    assert table is not None
    assert [str(cell) for cell in table.columns[0].cells] == ["easy total", "hard total"]
    hard = of_set(folder, "eval_hard_")
    assert run(f"data.eval={HARD}", *TWO_STEPS, name="alone")[0] == 0
    assert hard == of_set(RunFolder(folder.path.parent / "alone"), "eval_")
    assert {"reward", "rewards/correct/mean", "completions/mean_length", "greedy/total", "loss"} <= hard[0].keys()
    assert of_set(folder, "eval_easy_") != hard
    assert not any(name.startswith("eval_reward") for event in read_metrics(folder.metrics) for name in event)
    state = read_json(sorted(folder.checkpoints.iterdir())[-1] / "trainer_state.json")
    assert state["best_metric"] == max(event["sampled/tokens"] for event in hard)

    files = sorted(file.name for file in (folder.path / "eval" / "training").iterdir())
    ends = [f"-{name}.{end}" for name in ("easy", "hard") for end in ("completions.jsonl", "json")]
    assert files == [f"step-{step}{end}" for step in (1, 2) for end in ends]
    written = read_json(folder.path / "eval" / "training" / "step-2-hard.json")
    assert (written["rows"], written["data"], written["name"]) == (5, "hard: toy_sums", "step-2-hard")

    # Afterwards: all sets, or one; and what reads runs knows them.
    capsys.readouterr()
    assert main(["eval", str(folder.path), "--samples", "0", "--json"]) == 0
    sets = json.loads(capsys.readouterr().out)["sets"]
    assert {name: found["rows"] for name, found in sets.items()} == {"easy": 6, "hard": 5}
    assert main(["eval", str(folder.path), "--set", "hard", "--samples", "1", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["sets"]) == ["hard"]
    names = read_figures(folder)
    assert {name.partition("-")[2] for name in names} == {"easy_0_samples", "hard_0_samples", "hard_1_samples"}
    assert main(["compare", str(folder.path), "--json"]) == 0
    compared = capsys.readouterr().out
    assert "held out easy greedy total" in compared
    assert all(f"{name}: greedy/total" in compared for name in names)
    assert main(["eval", str(folder.path), "--set", "hrad"]) == 2
    assert "--set hard" in capsys.readouterr().err


def test_a_run_that_resumes_goes_on_with_its_sets(train) -> None:
    whole = of_set(train(TWO, *TWO_STEPS, "trainer.args.save_steps=1", name="whole")[1], "eval_hard_")
    _, folder = train(TWO, *TWO_STEPS, "stop.when=eval_easy_greedy/tokens >= 0", name="cut")
    assert len(of_set(folder, "eval_easy_")) == 1, "the rule stops the run after the first set"
    assert main(["resume", str(folder.path), "stop=null"]) == 0
    assert of_set(folder, "eval_hard_")[-1] == whole[-1]


@pytest.mark.parametrize("name", ["sft", "dpo", "kto", "reward"])
def test_a_trainer_that_learns_from_rows(workplace: Path, name: str, capsys) -> None:
    small = [f"+exp=toy_{name}", *TINY, *SMALL_STAGE, "trainer.args.max_steps=2", "expect=null"]
    world = {"sft": "demonstrations", "kto": "judgements"}.get(name, "preferences")
    other = f"{{world: toy_{world}, args: {{num_rows: 12, seed: 5}}}}"
    assert main(["train", *small, f"data.eval={{own: {{fraction: 0.1}}, other: {other}}}", "run.name=two"]) == 0
    assert ", held out own" in capsys.readouterr().out
    assert main(["train", *small, "run.name=alone"]) == 0
    two, alone = (RunFolder(workplace / "runs" / f"toy_{name}" / run) for run in ("two", "alone"))
    (own,), (single,), (unlike,) = (
        of_set(*one) for one in ((two, "eval_own_"), (alone, "eval_"), (two, "eval_other_"))
    )
    assert own == single
    assert unlike.keys() == own.keys()
    assert unlike["loss"] != own["loss"]
    assert read_json(two.provenance).get("lengths", {}).keys() >= {"train", "own", "other"}
