"""Run a sweep from the typed words to its final table: check and freeze every job, then run them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from rlhf_cli.errors import EXIT_OK, ConfigError, Prose
from rlhf_cli.jobs.slurm_jobs import goes_to_slurm, submit_sweep
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.writer_lock import only_writer
from rlhf_cli.screen.screen_width import Screen
from rlhf_cli.screen.sweep_heading import show_sweep
from rlhf_cli.slurm.slurm_submission import check_slurm
from rlhf_cli.sweeps.checked_jobs import CheckedJob, Known, checked, folder_of
from rlhf_cli.sweeps.expected_time import ExpectedTime, expected_time
from rlhf_cli.sweeps.outcome import say_folder, show_outcome, way_on
from rlhf_cli.sweeps.ready_job import ReadyJob
from rlhf_cli.sweeps.run_jobs import run_jobs
from rlhf_cli.sweeps.search import run_search
from rlhf_cli.sweeps.search_plan import search_plan
from rlhf_cli.sweeps.sweep_end import SweepEnd
from rlhf_cli.sweeps.sweep_folder import SweepFolder, write_sweep
from rlhf_cli.sweeps.sweep_grid import Grid, grid_of
from rlhf_cli.sweeps.sweep_options import SweepOptions
from rlhf_cli.sweeps.watched_metric import refuse_unlogged_watch

_WORTH_SHOWING_S = 1.0


def run(options: SweepOptions, typed: list[str]) -> SweepEnd:
    """Run every combination of the swept values in `typed`, or the search of their `sweep` section.

    With --dry-run, only print what would run. Return how the sweep ended. A failing job does not stop the others.
    Before anything is written, raise the errors of `prepare` and `preflight` for all jobs.
    """
    console = Screen()
    known: Known = {}
    if (plan := search_plan(typed, known)) is not None:
        return run_search(console, plan, typed, options)
    grid = grid_of(typed)
    with _progress(console, f"checking {len(grid.jobs)} runs", len(grid.jobs)) as tell:
        jobs = checked(grid.jobs, tell, known=known)
    refuse_unlogged_watch(options.watch, [job.prepared.experiment for job in jobs])
    for_slurm = _for_slurm(jobs)
    folder = folder_of(jobs)
    expected = None if for_slurm else expected_time(jobs)
    _show_heading(console, grid, jobs, options, folder, expected=expected, for_slurm=for_slurm)
    if options.dry_run:
        for job in jobs:
            console.print(f"  {job.job.name}", markup=False, highlight=False, soft_wrap=True)
        console.print("nothing was started or written")
        return SweepEnd(EXIT_OK, folder, is_dry=True)
    with _progress(console, f"freezing {len(jobs)} runs", len(jobs)) as tell:
        sweep = write_sweep(folder, typed, grid, jobs, tell)
    if for_slurm:
        submit_sweep(console, [sweep.run_of(job) for job in sweep.jobs], sweep.path)
        say_folder(console, sweep.path)
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
        console.print(way_on(sweep), soft_wrap=True, highlight=False, markup=False)
    return code


def _for_slurm(jobs: Sequence[CheckedJob]) -> bool:
    """Return whether the jobs go to Slurm, after checking that Slurm would accept them.

    Raise ConfigError if only some of them do.
    """
    launches = {job.prepared.experiment.launch.model_dump_json(): job for job in jobs}
    asked = {goes_to_slurm(job.prepared.experiment.launch) for job in launches.values()}
    if len(asked) > 1:
        raise ConfigError(
            "some of the runs would go to Slurm and some be run here",
            where="launch",
            expected="a sweep that is one or the other",
            hint=Prose("two sweeps"),
        )
    if asked == {False}:
        return False
    for job in launches.values():
        experiment = job.prepared.experiment
        check_slurm(experiment.launch, Path(experiment.run.root), count=len(jobs) if len(launches) == 1 else 1)
    return True


def _show_heading(
    console: Console,
    grid: Grid,
    jobs: Sequence[CheckedJob],
    options: SweepOptions,
    folder: Path,
    *,
    expected: ExpectedTime | None,
    for_slurm: bool,
) -> None:
    if expected is not None:
        runs = f"{expected.num_runs} finished {'run' if expected.num_runs == 1 else 'runs'}"
        says_so = f"by the training times of {runs} with as many steps"
    else:
        says_so = "Slurm decides when" if for_slurm else "unknown until the first has run"
    at_once = min(options.at_once, len(jobs))
    where_run = "left to Slurm" if for_slurm else f"{at_once} at a time" if at_once > 1 else "one after another"
    show_sweep(
        console,
        len(jobs),
        {axis.key: axis.texts for axis in grid.axes},
        where_run=where_run,
        time_s=expected.seconds / at_once if expected is not None else None,
        says_so=says_so,
        folder=RunFolder(folder).shown,
    )


@contextmanager
def _progress(console: Console, doing: str, total: int) -> Iterator[Callable[[int], None]]:
    """Return a context manager that shows a progress bar at a terminal once the work has taken a second."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = progress.add_task(doing, total=total)
    began_at = time.monotonic()
    is_shown = False

    def tell(done: int) -> None:
        nonlocal is_shown
        if not is_shown and time.monotonic() > began_at + _WORTH_SHOWING_S:
            progress.start()
            is_shown = True
        progress.update(task, completed=done)

    try:
        yield tell
    finally:
        progress.stop()
