"""Show the result of a sweep: the comparison, the report (also logged beside its runs), and the folder."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from rlhf_cli.comparison.comparison import Comparison, compare
from rlhf_cli.comparison.logged_run import read_runs
from rlhf_cli.comparison.measures import is_shown
from rlhf_cli.errors import RunError
from rlhf_cli.expectations.met_or_missed import MISSED, verify
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_state import UNREADABLE
from rlhf_cli.runs.run_status import CREATED, FINISHED, read_status
from rlhf_cli.screen.comparison_shown import show_comparison, show_left_out
from rlhf_cli.screen.expectations_table import missed_line, tally
from rlhf_cli.screen.next_commands import show_commands
from rlhf_cli.sweeps.next_after_sweep import next_command
from rlhf_cli.sweeps.sweep_folder import SweepFolder

_PICTURE = "comparison.png"


def show_outcome(console: Console, sweep: SweepFolder) -> None:
    """Print the comparison of a sweep's runs so far, and where the sweep and its report are."""
    folders = [run for job in sweep.jobs if (run := sweep.run_of(job)).config.is_file()]
    runs, problems = read_runs(folders, wanted=is_shown)
    comparison = compare(runs) if runs else None
    if comparison is not None:
        show_comparison(console, comparison)
    show_left_out(console, problems)
    _show_expectations(console, folders)
    report(console, sweep.path, comparison)
    show_commands(console, next_command(sweep, comparison))
    say_folder(console, sweep.path)


def _show_expectations(console: Console, folders: Sequence[RunFolder]) -> None:
    """Print how many runs met their expectations, and what the others missed."""
    verified = []
    for folder in folders:
        with contextlib.suppress(RunError):  # already listed as left out above
            verified.append(verify(folder))
    if not any(run.outcomes for run in verified):
        return
    console.print(Text.assemble("expectations: ", tally(verified)))
    for run in verified:
        for one in run.outcomes:
            if one.state == MISSED:
                console.print(f"  {run.folder.path.name}: {missed_line(one)}", markup=False, highlight=False)


def report(console: Console, folder: Path, comparison: Comparison | None = None) -> None:
    """Write a sweep's report and comparison plot, and log both to wandb if its runs are mirrored there.

    Never raise: the training itself has succeeded.
    """
    if not any(_has_begun(RunFolder(config.parent)) for config in folder.glob("*/config.yaml")):
        return
    from rlhf_cli.report.comparison_picture import draw_comparison
    from rlhf_cli.report.evaluation_picture import can_draw
    from rlhf_cli.report.page.write_report import NAME, report_at_the_end
    from rlhf_cli.tracking.report_run import log_report
    from rlhf_cli.tracking.wandb_records import unsent

    def say(line: str) -> None:
        console.print(line, soft_wrap=True, highlight=False, markup=False)

    say(report_at_the_end(folder))
    picture = folder / _PICTURE
    if comparison is not None and can_draw():
        try:
            draw_comparison(comparison, picture)
        except Exception as error:  # a plotting error must not fail a trained sweep
            say(f"no {_PICTURE}: {error}")
    log_report(folder, [folder / NAME, picture], say=say)
    if any(unsent(place) for place in (folder, *(config.parent for config in folder.glob("*/config.yaml")))):
        say(f"wandb recorded it here; `rlhf sync {shlex.quote(RunFolder(folder).shown)}` sends it")


def say_folder(console: Console, folder: Path) -> None:
    """Print the folder of a sweep; it is the last line of every sweep."""
    console.print(f"sweep folder: {RunFolder(folder).shown}", soft_wrap=True, highlight=False)


def way_on(sweep: SweepFolder) -> str:
    """Return the line that says how to resume an unfinished sweep."""
    left = [_state(sweep.run_of(job)) != FINISHED for job in sweep.jobs]
    runs = f"{sum(left)} of {len(left)} runs {'is' if sum(left) == 1 else 'are'} not done"
    return f"{runs}; `rlhf resume {shlex.quote(RunFolder(sweep.path).shown)}` goes on with them"


def _has_begun(run: RunFolder) -> bool:
    return run.status.is_file() and _state(run) != CREATED


def _state(run: RunFolder) -> str:
    """Return the state of a run. An unreadable status.json must not prevent showing the others."""
    try:
        return read_status(run).state
    except RunError:
        return UNREADABLE
