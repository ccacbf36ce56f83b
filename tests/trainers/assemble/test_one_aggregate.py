"""One aggregate everywhere: training, its table, its evaluations, the best checkpoint, `rlhf eval` and `rlhf score`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from rlhf_cli.cli import main
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import RunFolder, read_json
from tests.support.tolerances import ARITHMETIC

EVERY_STEP = ("data.eval.fraction=0.25", "trainer.args.eval_strategy=steps", "trainer.args.eval_steps=1")
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


@pytest.mark.parametrize("trainer", ["rloo", "ppo"])
def test_all_totals_are_the_aggregates(train, train_ppo, workplace: Path, capsys, trainer: str) -> None:
    (workplace / "mine.py").write_text(REWARDS)
    run = train_ppo if trainer == "ppo" else train
    best = ("trainer.args.load_best_model_at_end=true", "trainer.args.metric_for_best_model=greedy/total")
    words = ["trainer.dense=false"] if trainer == "ppo" else [f"trainer={trainer}"]
    code, folder = run(*words, *WORDS, *best, "trainer.args.save_steps=1", "trainer.args.num_generations_eval=2")
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


def test_a_running_deviation_is_the_trainings(train, workplace: Path, capsys) -> None:
    """An evaluation of a step divides by what the training had then; `rlhf eval` by what the run ended with."""
    (workplace / "mine.py").write_text(REWARDS)
    running = ("~rewards.b", "aggregate=sum", "rewards.a.normalize=running", "trainer.args.max_steps=3")
    code, folder = train(*WORDS, *running, "trainer.args.save_steps=3", "trainer.args.num_generations_eval=2")
    assert code == 0
    state = read_json(folder.checkpoints / "checkpoint-3" / "reward_state.json")["running"]["a"]
    divisor = (state["sum_of_squares"] / (state["count"] - 1)) ** 0.5
    written = folder.path / "eval" / "training" / "step-3"
    rows = [json.loads(line) for line in Path(f"{written}.completions.jsonl").read_text().splitlines()]
    expected = [sum(row["completion_ids"]) / 1000 / divisor for row in rows]
    assert [row["total"] for row in rows] == pytest.approx(expected, **ARITHMETIC)
    assert abs(divisor - 1) > 0.1  # else nothing is shown
    event = [one for one in read_metrics(folder.metrics) if "eval_greedy/total" in one][-1]
    assert event["eval_sampled/total"] == pytest.approx(event["eval_reward"], **ARITHMETIC)
    evaluated = json_of(capsys, "eval", str(folder.path), "--samples", "0")
    assert evaluated["parts"]["greedy"]["total"] == read_json(Path(f"{written}.json"))["parts"]["greedy"]["total"]


def test_a_total_that_no_answer_has_is_said_everywhere(train, workplace: Path, capsys) -> None:
    (workplace / "mine.py").write_text(REWARDS)
    words = (*WORDS, "aggregate=normalize_then_sum", "trainer.args.num_generations_eval=2", "trainer.args.max_steps=2")
    code, folder = train(*words)
    assert code == 0
    written = read_json(folder.path / "eval" / "training" / "step-1.json")
    assert (written["parts"]["greedy"]["total"]["mean"], written["parts"]["greedy"]["total"]["count"]) == (None, 0)
    assert "normalize_then_sum" in written["no_total"]
    assert folder.log.read_text().count("have no total: aggregate=normalize_then_sum") == 1
    evaluated = json_of(capsys, "eval", str(folder.path), "--samples", "0")
    assert evaluated["no_total"] == written["no_total"]
    assert main(["eval", str(folder.path), "--samples", "0"]) == 0
    assert "no row has a total alone: aggregate=normalize_then_sum" in capsys.readouterr().out
    scored = json_of(capsys, "score", "+exp=quickstart", *words, "--completions", str(folder.path))
    assert "normalize_then_sum" in scored["no_total"]
    assert {row["total"] for row in scored["rows"]} == {None}
