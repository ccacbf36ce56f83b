"""Say what came of a sweep: comparison, report, JSON, next commands."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from rlhf_cli.analysis.comparison.comparison import Comparison, compare
from rlhf_cli.analysis.comparison.comparison_export import comparison_json
from rlhf_cli.analysis.comparison.logged_run import read_runs
from rlhf_cli.analysis.comparison.measures import is_shown
from rlhf_cli.analysis.comparison.settings import SettingRuns
from rlhf_cli.analysis.expectations import MISSED, verify
from rlhf_cli.display.comparison_tables import show_comparison, show_left_out
from rlhf_cli.display.run_tables import missed_line, tally
from rlhf_cli.display.terminal import show_commands
from rlhf_cli.errors import RunError
from rlhf_cli.runs.run_folder import RunFolder, runs_below
from rlhf_cli.runs.run_status import CREATED, FINISHED, UNREADABLE, read_status, run_result
from rlhf_cli.sweeps.sweep_folder import SweepFolder, typed_words

_SEEDS = "seed=range(0,5)"
_NOT_AGAIN = ("run.name", "seed")
"""Keys to drop when the command is repeated with other seeds: a folder with that run.name exists by then."""


def next_command(sweep: SweepFolder, comparison: Comparison | None) -> dict[str, str]:
    """Return command -> purpose. `comparison` is None if no run could be read."""
    shown = shlex.quote(RunFolder(sweep.path).shown)
    if comparison is not None and any(run.metrics.num_events for run in comparison.runs):
        settings = comparison.grouped.settings
        if len(settings) > 1 and all(len(setting.by_seed) == 1 for setting in settings):
            words = [word for word in typed_words(sweep.path) if word.lstrip("+").partition("=")[0] not in _NOT_AGAIN]
            return {f"rlhf train -m {shlex.join([*words, _SEEDS])}": "five seeds a setting: intervals, and a verdict"}
        if (best := _winner(comparison)) is not None and best.runs and (folder := best.runs[0].folder) is not None:
            return {f"rlhf eval {shlex.quote(folder.shown)}": f"the model of {best.name}, measured"}
    return {f"rlhf why {shown}": "what the logs say, the worst of each run"}


def _winner(comparison: Comparison) -> SettingRuns | None:
    """Return the setting that a verdict names as the winner, or None."""
    key_of = {axis.short: axis.key for axis in comparison.grouped.axes}
    for verdict in comparison.verdicts:
        key = key_of[verdict.key]
        won = [one for one in comparison.grouped.settings if one.values[key] == verdict.winner]
        if verdict.winner is not None and len(won) == 1:
            return won[0]
    return None


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
    print_folder(console, sweep.path)


def _show_expectations(console: Console, folders: Sequence[RunFolder]) -> None:
    """Print how many runs met their expectations, and what the others missed."""
    verified = []
    for folder in folders:
        with contextlib.suppress(RunError):  # already listed as left out above
            verified.append(verify(folder))
    if any(run.outcomes for run in verified):
        console.print(Text.assemble("expectations: ", tally(verified)))
    for run in verified:
        for one in run.outcomes:
            if one.state == MISSED:
                console.print(f"  {run.folder.path.name}: {missed_line(one)}", markup=False, highlight=False)


def report(console: Console, folder: Path, comparison: Comparison | None = None) -> None:
    """Write a sweep's report and comparison plot.

    Never raise: the training itself has succeeded.
    """
    if not any(_has_begun(RunFolder(config.parent)) for config in folder.glob("*/config.yaml")):
        return
    from rlhf_cli.display.comparison_picture import draw_comparison
    from rlhf_cli.display.page.page_content import report_at_the_end
    from rlhf_cli.measure.pictures import can_draw
    from rlhf_cli.runs.tracking.wandb_files import unsent

    def say(line: str) -> None:
        console.print(line, soft_wrap=True, highlight=False, markup=False)

    say(report_at_the_end(folder))
    picture = folder / _PICTURE
    if comparison is not None and can_draw():
        try:
            draw_comparison(comparison, picture)
        except Exception as error:  # a plotting error must not fail a trained sweep
            say(f"no {_PICTURE}: {error}")
    if any(unsent(config.parent) for config in folder.glob("*/config.yaml")):
        say(f"wandb recorded it here; `rlhf sync {shlex.quote(RunFolder(folder).shown)}` sends it")


def print_folder(console: Console, folder: Path) -> None:
    """Print the folder of a sweep; it is the last line of every sweep."""
    console.print(f"sweep folder: {RunFolder(folder).shown}", soft_wrap=True, highlight=False)


def resume_hint(sweep: SweepFolder) -> str:
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
