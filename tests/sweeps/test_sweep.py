"""A sweep: all is checked first, then one folder, one run for every combination, one table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.runs.run_status import read_status


def test_two_weights_are_two_runs_and_compare_takes_their_folder(workplace: Path, sweep, capsys) -> None:
    code, runs = sweep("rewards.brevity.weight=0,0.5")
    assert code == 0
    assert [run.path.name for run in runs] == ["weight=0", "weight=0.5"]
    assert [run.read_config()["rewards"]["brevity"]["weight"] for run in runs] == [0, 0.5]
    assert [read_status(run).state for run in runs] == ["finished"] * 2
    out = capsys.readouterr().out
    assert out.index("sweep of 2 runs") < out.index("rewards.brevity.weight  0, 0.5")
    assert "runs/quickstart/swept: 2 runs, 2 settings\n" in out  # the table, which has tests of its own
    assert out.rstrip().splitlines()[-1] == "sweep folder: runs/quickstart/swept"
    written = json.loads((runs[0].path.parent / "sweep.json").read_text())
    assert written["overrides"][-1] == "rewards.brevity.weight=0,0.5"
    assert written["swept"] == ["rewards.brevity.weight"]
    assert [job["name"] for job in written["jobs"]] == ["weight=0", "weight=0.5"]
    assert written["jobs"][1]["values"] == {"rewards.brevity.weight": "0.5"}
    assert not (runs[0].path.parent / "status.json").exists()
    assert main(["compare", "runs/quickstart/swept"]) == 0


@pytest.mark.parametrize(
    "typo",
    [
        "rewards.brevity.wieght=0,1",
        "trainer=grpo,rlo",
        "'rewards.brevity.weight=range(0,2),x'",
    ],
)
def test_a_typo_is_told_once_and_before_any_job(workplace: Path, sweep, capsys, typo: str) -> None:
    code, runs = sweep(typo, "trainer.args.beta=0,0.1")
    assert code == 2
    assert runs == []
    assert not (workplace / "runs").exists()
    assert capsys.readouterr().err.count("where:") == 1


def test_all_mistakes_of_all_jobs_are_told_together_each_with_its_jobs(workplace: Path, sweep, capsys) -> None:
    """One value is wrong for half of the jobs, another for a third, one key for all of them."""
    words = ["rewards.brevity.wieght=1", "seed=1,x", "trainer.args.beta=0,0.1,y", "rewards.brevity.fn=./no.py:f"]
    code, runs = sweep(*words)
    error = capsys.readouterr().err
    assert (code, runs) == (2, [])
    assert error.count("where:") == 3
    assert "runs:     seed=x,beta=0  seed=x,beta=0.1  seed=x,beta=y\n" in error
    assert "runs:     seed=1,beta=y  seed=x,beta=y\n" in error
    assert error.count("runs:") == 2
    assert not (workplace / "runs").exists()


def test_a_dry_run_says_it_all_and_writes_nothing(workplace: Path, sweep, capsys) -> None:
    code, runs = sweep("seed=1,2", "truncation=none,bootstrap", "trainer=ppo", "--dry-run", "-j2")
    assert (code, runs) == (0, [])
    assert not (workplace / "runs").exists()
    out = capsys.readouterr().out
    assert "sweep of 4 runs, 2 at a time" in out
    for name in ("seed=1,truncation=none", "seed=2,truncation=bootstrap"):
        assert f"  {name}\n" in out
