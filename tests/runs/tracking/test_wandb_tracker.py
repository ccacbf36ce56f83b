"""wandb's own record of a run that was logged, read back: what its users would find in the browser."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_cli.errors import Preempted
from rlhf_cli.runs.run_folder import RunFolder
from tests.runs.tracking.tracked_runs import CONFIG, EVENTS, REWARDS, Mirrored, logged_run, write_evaluation
from tests.support.wandb_read_back import leaves, records, tables

STEP = "train/global_step"


@pytest.fixture
def job(place: Path) -> RunFolder:
    """A job of a sweep, with an evaluation at step 4."""
    sweep = place / "runs" / "quickstart" / "swept"
    folder = logged_run(sweep / "weight=2,seed=3")
    (sweep / "sweep.json").write_text("{}")
    write_evaluation(folder, 4)
    return folder


def test_one_run_says_everything_once(job: RunFolder, mirrored: Mirrored) -> None:
    """One record is read for all: importing and running wandb is what these tests cost.

    `final` of four events is the last (a tenth of four, at least one), `best` the greatest: 0.9 at step 2.
    """
    assert mirrored(job) == []
    (read,) = records(job.path)
    assert (read.run["display_name"], read.run["run_group"]) == ("weight=2,seed=3", "quickstart/swept")
    assert (read.run["job_type"], read.run["project"], read.run["notes"]) == ("grpo", "sums", "n")
    assert set(read.run["tags"]) == {"quickstart", "tiny", "toy_sums", "mine"}
    assert (read.run["run_id"], read.exit_code) == ("0123abcd", 0)
    # The configuration is the experiment as it is nested, and a few words of provenance.
    own = {name: value for name, value in read.config.items() if name not in ("_wandb", "provenance")}
    assert own == CONFIG
    assert set(read.config["provenance"]) == {"command", "versions"}
    assert leaves(read.config["provenance"]) == 4
    # Every metric is over the optimizer's step, which is wandb's step too, and has the name of metrics.jsonl.
    assert read.axes == {"*": STEP}
    assert list(read.steps) == [1, 2, 3, 4] == list(read.series(STEP).values())
    assert read.series("train/reward") == dict(enumerate(REWARDS, 1))
    of_training = {"train/reward", "rewards/correct/mean", "housekeeping/epoch", "housekeeping/time_s", STEP}
    of_evaluation = {"eval/greedy/total", "eval/greedy/total/low", "eval/greedy/total/high"}
    of_evaluation |= {"eval/greedy/rewards/correct", "eval/pass@4/correct"}
    assert read.metrics == of_training | of_evaluation
    assert set(read.series("eval/greedy/total")) == {4}
    expected = {
        **{"final/train/reward": 0.5, "best/train/reward": 0.9, "best_step/train/reward": 2},
        **{"final/rewards/correct/mean": 0.25, "best/rewards/correct/mean": 0.45},
        **{"final/eval/greedy/total": 0.6},
        **{"train_runtime": 6.5, "train_loss": 0.01, "train/reward": 0.5},
    }
    assert {name: read.summary.get(name) for name in expected} == expected
    # Tables: one a step under one name, and an evaluation's answers.
    by_step = tables(job.path, "completions")
    assert [table["data"][0][:3] for table in by_step] == [[step, "1+1=", f"two at {step}"] for step in range(1, 5)]
    (answers,) = tables(job.path, "evaluation_answers")
    assert dict(zip(answers["columns"], answers["data"][0], strict=True)) == {
        **{"step": 4, "prompt": "user: 1+1=", "completion": "2\u2028", "part": "greedy", "sample": 0},
        **{"total": 0.6, "correct": 0.3},
    }


def test_a_run_that_goes_on_keeps_the_steps_it_has(place: Path, mirrored: Mirrored) -> None:
    """Killed at step 4 with a checkpoint of step 2, it trains 3 and 4 again: wandb has them and gets them once."""
    folder = logged_run(place / "runs" / "quickstart" / "one")
    with pytest.raises(Preempted):
        mirrored(folder, error=Preempted("stopped"))
    longer = [*EVENTS[:4], {"step": 5, "time_s": 7.0, "reward": 0.7, "rewards/correct/mean": 0.35}]
    folder.metrics.write_text("".join(json.dumps(one) + "\n" for one in longer))
    (said,) = mirrored(folder, goes_on_from=2, recorded_to=4)
    assert said.startswith("wandb has steps 3 to 4 from before the stop and keeps them as they were")
    first, second = records(folder.path)
    assert first.run["run_id"] == second.run["run_id"]
    assert [*first.steps, *second.steps] == [1, 2, 3, 4, 5]
    assert (first.exit_code, second.exit_code) == (1, 0)
    assert second.summary["best/train/reward"] == 0.9  # of the whole run, not of its last attempt
    assert first.run["display_name"] == "quickstart/one"
