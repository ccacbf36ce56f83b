"""Run a search from its plan to its final table: a study proposes trials, which run as jobs of a sweep."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from rlhf_cli.errors import EXIT_OK, ConfigError, RunError
from rlhf_cli.jobs.resume_options import ResumeOptions
from rlhf_cli.jobs.slurm_jobs import goes_to_slurm
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.writer_lock import only_writer
from rlhf_cli.screen.search_result import TrialRow, show_found, show_search
from rlhf_cli.sweeps.checked_jobs import checked, folder_of
from rlhf_cli.sweeps.job_names import short_keys
from rlhf_cli.sweeps.outcome import report, say_folder
from rlhf_cli.sweeps.run_jobs import run_jobs
from rlhf_cli.sweeps.search_plan import SearchPlan, few_digits, search_plan, without_section
from rlhf_cli.sweeps.search_space import Numbers, Options, Space
from rlhf_cli.sweeps.study import JOURNAL, Memory
from rlhf_cli.sweeps.sweep_end import SweepEnd
from rlhf_cli.sweeps.sweep_folder import SWEEP_FILE, begin_sweep, typed_words
from rlhf_cli.sweeps.sweep_options import SweepOptions
from rlhf_cli.sweeps.trials import Trials
from rlhf_cli.sweeps.watched_metric import refuse_unlogged_watch

_HOW = {"off": "", "median": ", stopped early below the median", "halving": ", of which a third goes on at each rung"}
_SEEDS = "seed=range(1,6)"


def run_search(console: Console, plan: SearchPlan, typed: list[str], options: SweepOptions) -> SweepEnd:
    """Run a new search, or describe it with --dry-run, and return how it ended.

    Before anything is written, raise all problems at the corners of the space, and ConfigError if Optuna is missing or
    trials would go to Slurm.
    """
    corners = checked(plan.corners(), adjust=without_section)
    if goes_to_slurm(corners[0].prepared.experiment.launch):
        raise ConfigError(
            "a search has to wait for its trials, and Slurm's queue is no place to wait",
            where="launch.slurm",
            got="launch=slurm and a search",
            expected="trials on this machine, or within one job of Slurm's: sbatch --wrap 'rlhf train -m ...'",
            hint="launch=auto -j N",
        )
    refuse_unlogged_watch(options.watch, [corner.prepared.experiment for corner in corners])
    folder = folder_of(corners)
    _show_heading(console, plan, folder, options)
    if options.dry_run:
        console.print("nothing was started or written")
        return SweepEnd(EXIT_OK, folder, is_dry=True)
    begin_sweep(folder, typed, list(plan.space), [])
    return SweepEnd(go_on_with_search(console, plan, folder, options, ResumeOptions()), folder)


def is_search(folder: Path) -> bool:
    """Return whether the sweep in a folder is a search."""
    return (folder / JOURNAL).is_file()


def search_of(folder: Path) -> SearchPlan:
    """Return the search in a folder, from its original words. Raise RunError if they no longer describe a search."""
    plan = search_plan(typed_words(folder))
    if plan is None:
        raise RunError("the words of this search describe none any more", where=str(folder / SWEEP_FILE))
    return plan


def go_on_with_search(
    console: Console, plan: SearchPlan, folder: Path, options: SweepOptions, allowed: ResumeOptions
) -> int:
    """Run the remaining trials of a search (none with --dry-run), show the results, and return the exit code.

    Unfinished trials resume with the permissions in `allowed`. Raise RunError if another process runs the search, and
    the errors of `resumed` for a trial that cannot resume.
    """
    with only_writer(RunFolder(folder), take_over=allowed.take_over, what="sweep"):
        memory = Memory(folder, plan.sweep, plan.objectives, plan.space, seed=plan.seed)
        if options.dry_run:
            _show_found(console, plan, memory)
            _show_left(console, plan, memory, folder)
            console.print("nothing was started or written")
            return EXIT_OK
        trials = Trials(folder, plan, memory, lambda line: console.print(line, style="yellow", markup=False), allowed)
        try:
            watched = options.watch or plan.objectives[0].metric
            return run_jobs(console, [], replace(options, watch=watched), to_come=trials)
        finally:
            _show_found(console, plan, memory)
            _show_left(console, plan, memory, folder)
            report(console, folder)
            say_folder(console, folder)


def _show_left(console: Console, plan: SearchPlan, memory: Memory, folder: Path) -> None:
    """Print how many trials are left, if any."""
    if left := plan.sweep.trials - sum(trial.state != "running" for trial in memory.trials()):
        shown = shlex.quote(RunFolder(folder).shown)
        way_on = f"{left} of {plan.sweep.trials} trials are left; `rlhf resume {shown}` goes on"
        console.print(way_on, soft_wrap=True, highlight=False, markup=False)


def _show_heading(console: Console, plan: SearchPlan, folder: Path, options: SweepOptions) -> None:
    at_once = f", {options.at_once} at a time" if options.at_once > 1 else ""
    how = f"{plan.sweep.trials} by {plan.sweep.sampler}{_HOW[plan.sweep.prune]}{at_once}"
    space = {key: _in_words(may_be) for key, may_be in plan.space.items()}
    show_search(console, objectives=[*map(str, plan.objectives)], space=space, how=how, folder=RunFolder(folder).shown)


def _show_found(console: Console, plan: SearchPlan, memory: Memory) -> None:
    best = {trial.number for trial in memory.best()}
    tried = memory.trials()
    short = short_keys(list(plan.space))
    rows = [
        TrialRow(
            name=trial.job or str(trial.number),
            settings={short[key]: few_digits(value) for key, _, value in (word.partition("=") for word in trial.words)},
            values=trial.values if trial.state == "complete" else (),
            state=trial.state,
            is_best=trial.number in best,
        )
        for trial in tried
    ]
    first = next((trial for trial in tried if trial.number in best), None)
    fixed = [word for word in plan.fixed if not word.startswith("run.name=")]
    again = ["rlhf", "train", "-m", *fixed, *rounded_words(first.words if first else (), plan.space), _SEEDS]
    show_found(console, rows, objectives=[*map(str, plan.objectives)], again=shlex.join(again))


def _in_words(may_be: Numbers | Options) -> str:
    if isinstance(may_be, Options):
        return ", ".join(may_be.values)
    kind = " whole numbers" if may_be.is_whole else ""
    return f"{may_be.low:g} to {may_be.high:g}{kind}{', logarithmic' if may_be.is_log else ''}"


def rounded_words(words: Sequence[str], space: Space) -> list[str]:
    """Return words with the number of digits a user would type. Whole numbers and options are not changed.

    `max_completion_length=1.235e+04` would not be a whole number, and not the value that was tried.
    """
    rounded = []
    for key, _, value in (word.partition("=") for word in words):
        may_be = space.get(key)
        is_any_number = isinstance(may_be, Numbers) and not may_be.is_whole
        rounded.append(f"{key}={float(value):.4g}" if is_any_number else f"{key}={value}")
    return rounded
