"""Several evaluation sets in a training: each logs what a run logs that evaluates this set alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.analysis.comparison.logged_run import read_figures
from rlhf_cli.cli import main
from rlhf_cli.display.run_tables import held_out
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.tables.metrics import is_of_the_clock
from tests.trainers.small_stages import SMALL_STAGE, TINY

pytestmark = pytest.mark.whole

EASY = "{world: toy_sums, args: {num_rows: 6, max_value: 4, seed: 1}}"
HARD = "{world: toy_sums, args: {num_rows: 5, max_value: 60, seed: 2}}"
TWO = f"data.eval={{easy: {EASY}, hard: {HARD}}}"
EVERY_STEP = ["trainer.args.eval_strategy=steps", "trainer.args.eval_steps=1", "trainer.args.max_steps=2"]
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
    code, folder = run(TWO, *EVERY_STEP, *BEST, best)
    assert code == 0
    assert "step 2, held out easy: greedy" in capsys.readouterr().out
    table = held_out(read_metrics(folder.metrics), None, [])
    assert table is not None
    assert [str(cell) for cell in table.columns[0].cells] == ["easy total", "hard total"]
    hard = of_set(folder, "eval_hard_")
    assert run(f"data.eval={HARD}", *EVERY_STEP, name="alone")[0] == 0
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
    whole = of_set(train(TWO, *EVERY_STEP, "trainer.args.save_steps=1", name="whole")[1], "eval_hard_")
    _, folder = train(TWO, *EVERY_STEP, "stop.when=eval_easy_greedy/tokens >= 0", name="cut")
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
