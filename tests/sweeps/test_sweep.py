"""A sweep: all is checked first, then one folder, one run for every combination, one table."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from rlhf_cli.cli import main
from rlhf_cli.runs.run_status import read_status
from rlhf_cli.sweeps.checked_jobs import SweepFolder
from rlhf_cli.sweeps.outcome import resume_hint, show_outcome
from rlhf_cli.sweeps.sweep_grid import SweepJob
from tests.support.logged_runs import configured, write_run, write_sweep
from tests.support.terminal import printed


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


# What is said of a sweep at its end, also where a run of it has been damaged.


def test_a_status_that_cannot_be_read_costs_the_others_nothing(place: Path) -> None:
    folders = write_sweep(place / "sweep", {0.0: [0.5, 0.6], 0.5: [0.75, 0.7]})
    sweep = SweepFolder(place / "sweep", tuple(SweepJob(folder.path.name, {}, ()) for folder in folders))
    folders[0].status.write_text("{")

    def show(console: Console) -> None:
        show_outcome(console, sweep)

    said = "\n".join(printed(show, 200))
    assert "left out: 1 run, unreadable" in said
    assert "report: " in said
    assert (place / "sweep" / "report.html").is_file()
    assert resume_hint(sweep).startswith("1 of 4 runs is not done")


LONG = "reward 'bad' failed on row 0\n  where:    rewards.bad\n  got:      ValueError: no\n  try:      rlhf score ..."


def test_a_sweep_in_which_all_has_failed(place: Path) -> None:
    """No picture can be drawn of nothing, and a reader is given each failure once, in a line."""
    folders = [
        write_run(place / "sweep" / str(seed), configured(0.0, seed), {}, state="failed", reason=LONG)
        for seed in (0, 1)
    ]
    (place / "sweep" / "sweep.json").write_text("{}")
    sweep = SweepFolder(place / "sweep", tuple(SweepJob(folder.path.name, {}, ()) for folder in folders))
    said = "\n".join(printed(lambda console: show_outcome(console, sweep), 200))
    assert "division" not in said
    assert not (place / "sweep" / "comparison.png").exists()
    assert (
        said.count(
            "seed=0, seed=1 do not count: failed, nothing was logged: reward 'bad' failed on row 0: ValueError: no"
        )
        == 1
    )
    assert "where:" not in said
    assert "  rlhf why sweep" in said
