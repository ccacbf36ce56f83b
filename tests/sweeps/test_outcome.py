"""What is said of a sweep at its end, also where a run of it has been damaged."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from rlhf_cli.sweeps.outcome import show_outcome, way_on
from rlhf_cli.sweeps.sweep_folder import SweepFolder
from rlhf_cli.sweeps.sweep_grid import Job
from tests.support.logged_runs import write_sweep
from tests.support.terminal import printed


def test_a_status_that_cannot_be_read_costs_the_others_nothing(place: Path) -> None:
    folders = write_sweep(place / "sweep", {0.0: [0.5, 0.6], 0.5: [0.75, 0.7]})
    sweep = SweepFolder(place / "sweep", tuple(Job(folder.path.name, {}, ()) for folder in folders))
    folders[0].status.write_text("{")

    def show(console: Console) -> None:
        show_outcome(console, sweep)

    said = "\n".join(printed(show, 200))
    assert "left out: 1 run, unreadable" in said
    assert "report: " in said
    assert (place / "sweep" / "report.html").is_file()
    assert way_on(sweep).startswith("1 of 4 runs is not done")
