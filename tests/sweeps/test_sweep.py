"""A sweep checks all jobs first, then makes one folder, one run per combination and one table."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.cli.options import read_options, usage_of
from rlhf_cli.runs.run_status import read_status
from rlhf_cli.sweeps.sweep_folder import SweepFolder, resume_hint, show_outcome
from rlhf_cli.sweeps.swept_words import SweepJob
from tests.support.logged_runs import configured, write_run, write_sweep
from tests.support.terminal import printed

pytestmark = pytest.mark.whole


def test_two_weights_are_two_runs_which_compare_reads(workplace: Path, sweep, capsys) -> None:
    code, runs = sweep("rewards.brevity.weight=0,0.5")
    assert code == 0
    assert [run.path.name for run in runs] == ["weight=0", "weight=0.5"]
    assert [run.read_config()["rewards"]["brevity"]["weight"] for run in runs] == [0, 0.5]
    assert [read_status(run).state for run in runs] == ["finished"] * 2
    out = capsys.readouterr().out
    assert "sweep of 2 runs" in out
    assert "[1/2] weight=0 begins\n" in out
    assert "runs/quickstart/swept: 2 runs, 2 settings\n" in out  # the table is tested elsewhere
    assert out.rstrip().splitlines()[-1] == "sweep folder: runs/quickstart/swept"
    written = json.loads((runs[0].path.parent / "sweep.json").read_text())
    assert written["overrides"][-1] == "rewards.brevity.weight=0,0.5"
    assert written["swept"] == ["rewards.brevity.weight"]
    assert [job["name"] for job in written["jobs"]] == ["weight=0", "weight=0.5"]
    assert written["jobs"][1]["values"] == {"rewards.brevity.weight": "0.5"}
    assert not (runs[0].path.parent / "status.json").exists()
    assert main(["compare", "runs/quickstart/swept"]) == 0


def test_all_mistakes_are_reported_together_with_their_jobs(workplace: Path, sweep, capsys) -> None:
    """One value is wrong in half of the jobs, another in a third, and one key in all of them."""
    words = ["rewards.brevity.wieght=1", "seed=1,x", "trainer.args.beta=0,0.1,y", "rewards.brevity.fn=./no.py:f"]
    code, runs = sweep(*words)
    error = capsys.readouterr().err
    assert (code, runs) == (2, [])
    assert error.count("where:") == 3
    assert "runs:     seed=x,beta=0  seed=x,beta=0.1  seed=x,beta=y\n" in error
    assert "runs:     seed=1,beta=y  seed=x,beta=y\n" in error
    assert error.count("runs:") == 2
    assert not (workplace / "runs").exists()


def test_a_dry_run_lists_the_jobs_and_writes_nothing(workplace: Path, sweep, capsys) -> None:
    code, runs = sweep("seed=1,2", "truncation=none,bootstrap", "trainer=ppo", "--dry-run", "-j2")
    assert (code, runs) == (0, [])
    assert not (workplace / "runs").exists()
    out = capsys.readouterr().out
    assert "sweep of 4 runs, 2 at a time" in out
    assert "  truncation  none, bootstrap" in out
    assert "  seed=2,truncation=bootstrap\n" in out


def test_an_unreadable_status_does_not_hide_the_other_runs(place: Path) -> None:
    folders = write_sweep(place / "sweep", {0.0: [0.5, 0.6], 0.5: [0.75, 0.7]})
    sweep = SweepFolder(place / "sweep", tuple(SweepJob(folder.path.name, {}, ()) for folder in folders))
    folders[0].status.write_text("{")

    said = "\n".join(printed(lambda console: show_outcome(console, sweep), 200))
    assert f"{folders[0].path.name}" in said
    assert "report: " in said
    assert (place / "sweep" / "report.html").is_file()
    assert resume_hint(sweep).startswith("1 of 4 runs is not done")
    picture = next(line for line in said.splitlines() if "--png" in line).partition(" # ")[0]
    assert read_options(usage_of("compare"), shlex.split(picture)[2:]).path("--png") is not None, "it can be typed"


def test_a_sweep_in_which_every_run_failed(place: Path) -> None:
    """Each failure is shown once, in one line."""
    long = "reward 'bad' failed on row 0\n  where:    rewards.bad\n  got:      ValueError: no\n  try:      rlhf ..."
    for seed in (0, 1):
        write_run(place / "sweep" / str(seed), configured(0.0, seed), {}, state="failed", reason=long)
    (place / "sweep" / "sweep.json").write_text("{}")
    sweep = SweepFolder(place / "sweep", tuple(SweepJob(str(seed), {}, ()) for seed in (0, 1)))
    said = "\n".join(printed(lambda console: show_outcome(console, sweep), 200))
    assert said.count("reward 'bad' failed on row 0: ValueError: no") == 1
    assert "where:" not in said
    assert "  rlhf why sweep" in said
