"""What is said of a sweep at its end, also where a run of it has been damaged."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.sweeps.outcome import resume_hint, show_outcome
from rlhf_cli.sweeps.sweep_folder import SweepFolder
from rlhf_cli.sweeps.sweep_grid import SweepJob
from tests.support.logged_runs import configured, write_run, write_sweep
from tests.support.terminal import printed


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


def shown(place: Path, folders: list[RunFolder], *typed: str) -> str:
    (place / "sweep" / "sweep.json").write_text(json.dumps({"overrides": typed}))
    sweep = SweepFolder(place / "sweep", tuple(SweepJob(folder.path.name, {}, ()) for folder in folders))
    return "\n".join(printed(lambda console: show_outcome(console, sweep), 200))


def test_what_to_type_next_with_one_seed_a_setting(place: Path) -> None:
    """The command again with five seeds, without the name that is taken; the model of what is best in all."""
    folders = write_sweep(place / "sweep", {0.0: [0.5], 0.5: [0.75]})
    said = shown(place, folders, "+exp=mine", "rewards.brevity.weight=0,0.5", "run.name=w", "seed=3")
    assert "  rlhf train -m +exp=mine rewards.brevity.weight=0,0.5 'seed=range(0,5)'" in said
    assert sum(line.startswith("  rlhf ") for line in said.splitlines()) == 1, "one hint"


def test_what_to_type_next_where_there_are_seeds(place: Path) -> None:
    said = shown(place, write_sweep(place / "sweep", {0.0: [0.1, 0.2, 0.15], 0.5: [0.7, 0.81, 0.75]}), "+exp=mine")
    assert "rlhf train -m" not in said
    assert "  rlhf eval sweep/0.5-0  # the model of weight=0.5" in said


def test_a_sweep_in_which_all_has_failed(place: Path) -> None:
    """No picture can be drawn of nothing, and a reader is given each failure once, in a line."""
    folders = [
        write_run(place / "sweep" / str(seed), configured(0.0, seed), {}, state="failed", reason=LONG)
        for seed in (0, 1)
    ]
    said = shown(place, folders, "+exp=mine")
    assert "division" not in said
    assert not (place / "sweep" / "comparison.png").exists()
    assert (
        said.count(
            "seed=0, seed=1 do not count: failed, nothing was logged: reward 'bad' failed on row 0: ValueError: no"
        )
        == 1
    )
    assert "where:" not in said
    assert "rlhf train -m" not in said
    assert "  rlhf why sweep" in said
