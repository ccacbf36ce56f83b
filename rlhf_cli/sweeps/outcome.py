"""Show the outcome of a sweep: comparison, report, JSON, next commands."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from rlhf_cli.analysis.comparison.comparison import compare, comparison_json
from rlhf_cli.analysis.comparison.logged_run import read_runs
from rlhf_cli.analysis.comparison.measures import is_shown
from rlhf_cli.analysis.expectations import verify
from rlhf_cli.display.comparison_tables import show_comparison, show_left_out
from rlhf_cli.display.run_tables import shortened_line, tally
from rlhf_cli.display.terminal import show_commands
from rlhf_cli.errors import RunError
from rlhf_cli.runs.run_folder import RunFolder, runs_below
from rlhf_cli.runs.run_status import CREATED, FINISHED, UNREADABLE, read_status, run_result
from rlhf_cli.sweeps.checked_jobs import SweepFolder


def show_outcome(console: Console, sweep: SweepFolder) -> None:
    """Print the comparison of a sweep's runs so far, and where the sweep and its report are."""
    folders = [run for job in sweep.jobs if (run := sweep.run_of(job)).config.is_file()]
    runs, problems = read_runs(folders, wanted=is_shown)
    if runs:
        show_comparison(console, compare(runs))
    show_left_out(console, problems)
    show_expectations(console, folders)
    report(console, sweep.path)
    shown = shlex.quote(RunFolder(sweep.path).shown)
    commands = {f"rlhf why {shown}": "the worst finding of each run"}
    show_commands(console, commands | ({f"rlhf compare {shown} --png FILE": "as a picture"} if runs else {}))
    print_folder(console, sweep.path)


def show_expectations(console: Console, folders: Sequence[RunFolder]) -> None:
    """Print how many runs met their expectations, or why a sweep is not judged."""
    verified = []
    for folder in folders:
        with contextlib.suppress(RunError):  # already listed as left out above
            verified.append(verify(folder))
    judged = [run for run in verified if run.outcomes]
    if not judged:
        return
    if (line := shortened_line(judged[0].typed)) is not None:
        console.print(line, style="dim", markup=False, highlight=False, soft_wrap=True)
        return
    console.print(Text.assemble("expectations: ", tally(verified), "; rlhf verify lists them"))


def report(console: Console, folder: Path) -> None:
    """Write a sweep's report. Never raise: the training itself has succeeded."""
    runs = [RunFolder(config.parent) for config in folder.glob("*/config.yaml")]
    if all(not run.status.is_file() or _state(run) == CREATED for run in runs):
        return
    from rlhf_cli.display.page.page_content import report_at_the_end
    from rlhf_cli.runs.tracking.wandb_files import unsent

    def say(line: str) -> None:
        console.print(line, soft_wrap=True, highlight=False, markup=False)

    say(report_at_the_end(folder))
    if any(unsent(run.path) for run in runs):
        say(f"wandb recorded the runs offline; `rlhf sync {shlex.quote(RunFolder(folder).shown)}` sends them")


def print_folder(console: Console, folder: Path) -> None:
    """Print the folder of a sweep; it is the last line of every sweep."""
    console.print(f"sweep folder: {RunFolder(folder).shown}", soft_wrap=True, highlight=False)


def resume_hint(sweep: SweepFolder) -> str:
    """Return the line that says how to resume an unfinished sweep."""
    left = [_state(sweep.run_of(job)) != FINISHED for job in sweep.jobs]
    runs = f"{sum(left)} of {len(left)} runs {'is' if sum(left) == 1 else 'are'} not done"
    return f"{runs}; `rlhf resume {shlex.quote(RunFolder(sweep.path).shown)}` continues them"


def _state(run: RunFolder) -> str:
    try:
        return read_status(run).state
    except RunError:
        return UNREADABLE


@dataclass(frozen=True)
class SweepEnd:
    """How a sweep ended: the exit code and its folder. `is_dry` is set if nothing was started."""

    code: int
    folder: Path
    is_dry: bool = False

    def as_json(self) -> dict[str, object]:
        """Return the existing runs of the sweep and their comparison, null if no run could be read."""
        found = runs_below(self.folder) if self.folder.is_dir() else []
        runs, problems = read_runs(found, wanted=is_shown)
        return {
            "sweep": RunFolder(self.folder).shown,
            "dry_run": self.is_dry,
            "runs": [run_result(folder) for folder in found],
            "comparison": comparison_json(compare(runs), problems) if runs else None,
        }
