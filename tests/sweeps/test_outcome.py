"""What is said of a sweep at its end, also where a run of it has been damaged."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from rlhf_cli.sweeps.checked_jobs import SweepFolder
from rlhf_cli.sweeps.outcome import resume_hint, show_outcome
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
