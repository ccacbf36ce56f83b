"""Run a sweep, from the typed words to its last table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from rlhf_cli.display.sweep_tables import show_sweep
from rlhf_cli.display.terminal import Screen
from rlhf_cli.errors import EXIT_OK, ConfigError
from rlhf_cli.launch.slurm_submission import check_slurm, submit_sweep
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.writer_lock import only_writer
from rlhf_cli.sweeps.checked_jobs import (
    CheckedJob,
    ReadyJob,
    SweepFolder,
    begin_sweep,
    checked,
    freeze,
    new_sweep_folder,
    refuse_unlogged_watch,
)
from rlhf_cli.sweeps.outcome import SweepEnd, print_folder, resume_hint, show_outcome
from rlhf_cli.sweeps.run_jobs import run_jobs
from rlhf_cli.sweeps.search import run_search
from rlhf_cli.sweeps.search_space import search_plan
from rlhf_cli.sweeps.sweep_grid import grid_of
from rlhf_cli.sweeps.sweep_options import SweepOptions


def run(options: SweepOptions, typed: list[str]) -> SweepEnd:
    """Run every combination of the swept values in `typed`, or the search of their `sweep` section.

    With --dry-run, only print what would run. Return how the sweep ended. A failing job does not stop the others.
    Before anything is written, raise the errors of `prepare` and `preflight` for all jobs.
    """
    console = Screen()
    if (plan := search_plan(typed)) is not None:
        return run_search(console, plan, typed, options)
    grid = grid_of(typed)
    jobs = checked(grid.jobs, console)
    refuse_unlogged_watch(options.watch, [job.prepared.experiment for job in jobs])
    for_slurm = _for_slurm(jobs)
    folder = new_sweep_folder(jobs)
    at_once = min(options.at_once, len(jobs))
    where_run = "submitted to Slurm" if for_slurm else f"{at_once} at a time" if at_once > 1 else "one after another"
    facts = {axis.key: ", ".join(axis.texts) for axis in grid.axes} | {"folder": RunFolder(folder).shown}
    show_sweep(console, len(jobs), where_run, facts)
    if options.dry_run:
        for job in jobs:
            console.print(f"  {job.job.name}", markup=False, highlight=False, soft_wrap=True)
        console.print("nothing was started or written")
        return SweepEnd(EXIT_OK, folder, is_dry=True)
    begin_sweep(folder, typed, [axis.key for axis in grid.axes], grid.jobs)
    ready = [freeze(folder, job) for job in jobs]
    sweep = SweepFolder(folder, grid.jobs)
    if for_slurm:
        submit_sweep(console, [job.folder for job in ready], sweep.path)
        print_folder(console, sweep.path)
        return SweepEnd(EXIT_OK, sweep.path)
    with only_writer(RunFolder(sweep.path), what="sweep"):
        return SweepEnd(run_ready(console, sweep, ready, options), sweep.path)


def run_ready(console: Console, sweep: SweepFolder, jobs: Sequence[ReadyJob], options: SweepOptions) -> int:
    """Run jobs of a sweep, show the result of the whole sweep, and return the exit code. The caller holds the lock."""
    try:
        code = run_jobs(console, jobs, options)
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
    on_slurm = {experiment.launch.slurm is not None for experiment in launches.values()}
    if len(on_slurm) > 1:
        raise ConfigError(
            "some runs would go to Slurm and others run here",
            where="launch",
            expected="one of the two for the whole sweep",
            advice="run two sweeps",
        )
    for experiment in launches.values() if True in on_slurm else ():
        check_slurm(experiment.launch, count=len(jobs) if len(launches) == 1 else 1)
    return True in on_slurm
