"""Take a sweep from what was typed to its last table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from rlhf_cli.display.sweep_tables import show_sweep
from rlhf_cli.display.terminal import Screen, span
from rlhf_cli.errors import EXIT_OK, ConfigError, Prose, RunError
from rlhf_cli.jobs.run_states import goes_to_slurm, submit_sweep
from rlhf_cli.launch.freeze import experiment_name
from rlhf_cli.launch.slurm_submission import check_slurm
from rlhf_cli.runs.phase_clock import training_time_s
from rlhf_cli.runs.run_folder import RunFolder, runs_below
from rlhf_cli.runs.run_status import FINISHED, read_status, stopped_by_rule
from rlhf_cli.runs.writer_lock import only_writer
from rlhf_cli.sweeps.checked_jobs import (
    CheckedJob,
    PreparedJobs,
    ReadyJob,
    checked,
    new_sweep_folder,
    refuse_unlogged_watch,
)
from rlhf_cli.sweeps.outcome import SweepEnd, print_folder, resume_hint, show_outcome
from rlhf_cli.sweeps.run_jobs import run_jobs
from rlhf_cli.sweeps.search import run_search
from rlhf_cli.sweeps.search_space import search_plan
from rlhf_cli.sweeps.sweep_folder import SweepFolder, begin_sweep, freeze
from rlhf_cli.sweeps.sweep_grid import SweepGrid, grid_of
from rlhf_cli.sweeps.sweep_options import SweepOptions

_NEWEST = 100
"""Maximum number of runs to read. Reading all of them would take too long."""


@dataclass(frozen=True)
class ExpectedTime:
    """The time of all jobs one after another, in seconds, and the number of earlier runs that it is based on."""

    seconds: float
    num_runs: int


def expected_time(jobs: Sequence[CheckedJob]) -> ExpectedTime | None:
    """Return the training time of all jobs, or None if no comparable run has finished for one of them."""
    known: dict[tuple[Path, int | None], list[float]] = {}
    kinds = []
    for job in jobs:
        root = Path(job.prepared.experiment.run.root).expanduser() / experiment_name(job.prepared.composed)
        kinds.append((root, job.num_steps))
        if kinds[-1] not in known:
            known[kinds[-1]] = _times_s(*kinds[-1])
    if not all(known.values()):
        return None
    return ExpectedTime(sum(statistics.median(known[kind]) for kind in kinds), sum(map(len, known.values())))


def _times_s(root: Path, num_steps: int | None) -> list[float]:
    """Return the training times of the newest finished runs below a folder that had `num_steps` steps."""
    times: list[float] = []
    newest = sorted(runs_below(root), key=lambda run: run.path.stat().st_mtime, reverse=True)
    for run in newest[:_NEWEST]:
        with suppress(RunError, OSError):
            status = read_status(run)
            is_alike = status.state == FINISHED and not stopped_by_rule(status) and status.max_steps == num_steps
            if is_alike and (seconds := training_time_s(run)) is not None:
                times.append(seconds)
    return times


def run(options: SweepOptions, typed: list[str]) -> SweepEnd:
    """Run every combination of the swept values in `typed`, or the search of their `sweep` section.

    With --dry-run, only print what would run. Return how the sweep ended. A failing job does not stop the others.
    Before anything is written, raise the errors of `prepare` and `preflight` for all jobs.
    """
    console = Screen()
    known: PreparedJobs = {}
    if (plan := search_plan(typed, known)) is not None:
        return run_search(console, plan, typed, options)
    grid = grid_of(typed)
    with _progress(console, f"checking {len(grid.jobs)} runs", len(grid.jobs)) as tell:
        jobs = checked(grid.jobs, tell, known=known)
    refuse_unlogged_watch(options.watch, [job.prepared.experiment for job in jobs])
    for_slurm = _for_slurm(jobs)
    folder = new_sweep_folder(jobs)
    expected = None if for_slurm else expected_time(jobs)
    _show_heading(console, grid, jobs, options, folder, expected=expected, for_slurm=for_slurm)
    if options.dry_run:
        for job in jobs:
            console.print(f"  {job.job.name}", markup=False, highlight=False, soft_wrap=True)
        console.print("nothing was started or written")
        return SweepEnd(EXIT_OK, folder, is_dry=True)
    with _progress(console, f"freezing {len(jobs)} runs", len(jobs)) as tell:
        begin_sweep(folder, typed, [axis.key for axis in grid.axes], grid.jobs)
        for done, job in enumerate(jobs, start=1):
            freeze(folder, job)
            tell(done)
    sweep = SweepFolder(folder, grid.jobs)
    if for_slurm:
        submit_sweep(console, [sweep.run_of(job) for job in sweep.jobs], sweep.path)
        print_folder(console, sweep.path)
        return SweepEnd(EXIT_OK, sweep.path)
    ready = [ReadyJob(job.job.name, sweep.run_of(job.job), job.prepared.experiment, job.plan) for job in jobs]
    with only_writer(RunFolder(sweep.path), what="sweep"):
        expected_s = expected.seconds / len(jobs) if expected else None
        return SweepEnd(run_ready(console, sweep, ready, options, expected_s=expected_s), sweep.path)


def run_ready(
    console: Console,
    sweep: SweepFolder,
    jobs: Sequence[ReadyJob],
    options: SweepOptions,
    *,
    expected_s: float | None = None,
) -> int:
    """Run jobs of a sweep, show the result of the whole sweep, and return the exit code. The caller holds the lock."""
    try:
        code = run_jobs(console, jobs, options, expected_s=expected_s)
    finally:
        show_outcome(console, sweep)
    if code != EXIT_OK:
        console.print(resume_hint(sweep), soft_wrap=True, highlight=False, markup=False)
    return code


def _for_slurm(jobs: Sequence[CheckedJob]) -> bool:
    """Return whether the jobs go to Slurm, after checking that Slurm would accept them.

    Raise ConfigError if only some of them do.
    """
    launches = {job.prepared.experiment.launch.model_dump_json(): job.prepared.experiment for job in jobs}
    on_slurm = {goes_to_slurm(experiment.launch) for experiment in launches.values()}
    if len(on_slurm) > 1:
        raise ConfigError(
            "some of the runs would go to Slurm and some be run here",
            where="launch",
            expected="a sweep that is one or the other",
            hint=Prose("two sweeps"),
        )
    for experiment in launches.values() if True in on_slurm else ():
        check_slurm(experiment.launch, Path(experiment.run.root), count=len(jobs) if len(launches) == 1 else 1)
    return True in on_slurm


def _show_heading(
    console: Console,
    grid: SweepGrid,
    jobs: Sequence[CheckedJob],
    options: SweepOptions,
    folder: Path,
    *,
    expected: ExpectedTime | None,
    for_slurm: bool,
) -> None:
    at_once = min(options.at_once, len(jobs))
    time_says = "Slurm decides when" if for_slurm else "unknown until the first has run"
    if expected is not None:
        runs = f"{expected.num_runs} finished {'run' if expected.num_runs == 1 else 'runs'}"
        known = span(expected.seconds / at_once)
        time_says = f"about {known}, by the training times of {runs} with as many steps"
    where_run = "left to Slurm" if for_slurm else f"{at_once} at a time" if at_once > 1 else "one after another"
    swept = {axis.key: ", ".join(axis.texts) for axis in grid.axes}
    facts = swept | {"time": time_says, "folder": RunFolder(folder).shown}
    show_sweep(console, len(jobs), where_run, facts)


@contextmanager
def _progress(console: Console, doing: str, total: int) -> Iterator[Callable[[int], None]]:
    """Return a context manager that shows a progress bar at a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(doing, total=total)
        yield lambda done: progress.update(task, completed=done)
