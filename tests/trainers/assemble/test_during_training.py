"""Evaluation while a policy trains: it says what `rlhf eval` says, training does not notice it, the best is kept."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import torch

from rlhf_cli.cli import main
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.tables.metrics import is_of_the_clock
from rlhf_cli.trainers.evaluation_mixin import EvaluationMixin
from rlhf_cli.trainers.extensions import ExtendedTrainer
from tests.support.tolerances import ARITHMETIC

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


def test_a_metric_that_is_not_there_is_told_with_those_that_are(train, capsys) -> None:
    words = [*EVERY_STEP, "trainer.args.save_steps=1", "trainer.args.load_best_model_at_end=true"]
    code, _ = train(*words, "trainer.args.metric_for_best_model=rewrd")
    assert code == 2
    said = capsys.readouterr().err
    assert "no evaluation logs rewrd" in said
    assert "trainer.args.metric_for_best_model=reward" in said


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


def json_of(capsys: Any, *words: str) -> Any:
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_all_totals_are_the_aggregates(train, workplace: Path, capsys) -> None:
    (workplace / "mine.py").write_text(REWARDS)
    best = ("trainer.args.load_best_model_at_end=true", "trainer.args.metric_for_best_model=greedy/total")
    code, folder = train(
        "trainer=rloo", *WORDS, *best, "trainer.args.save_steps=1", "trainer.args.num_generations_eval=2"
    )
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
    written = folder.path / "eval" / "training" / "step-1"
    rows = [json.loads(line) for line in Path(f"{written}.completions.jsonl").read_text().splitlines()]
    assert [row["total"] for row in rows] == pytest.approx([by_hand(row["completion_ids"]) for row in rows], abs=1e-9)
    assert {row["completion_ids"][0] % 2 for row in rows} == {0, 1}  # b applies to some and not to others
    (event,) = [one for one in read_metrics(folder.metrics) if "eval_greedy/total" in one]
    assert event["eval_greedy/total"] < -90
    assert event["eval_sampled/total"] == pytest.approx(event["eval_reward"], **ARITHMETIC)
    assert best_metric(folder) == event["eval_greedy/total"]
    # Afterwards.
    evaluated = json_of(capsys, "eval", str(folder.path), "--samples", "0")
    assert evaluated["parts"]["greedy"]["total"] == read_json(Path(f"{written}.json"))["parts"]["greedy"]["total"]
    kept = [row for row in rows if row["part"] == "greedy"]
    Path("kept.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    scored = json_of(capsys, "score", "+exp=quickstart", *WORDS, "--completions", "kept.jsonl")
    assert [row["total"] for row in scored["rows"]] == [row["total"] for row in kept]


def best_metric(folder: RunFolder) -> float:
    checkpoint = sorted(folder.checkpoints.iterdir())[-1]
    return float(read_json(checkpoint / "trainer_state.json")["best_metric"])
