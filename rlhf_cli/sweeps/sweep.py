"""Run a sweep, from the typed words to its last table, or resume one: its missing, stopped, killed and failed jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

from rich.console import Console

from rlhf_cli.display.run_tables import show_planned
from rlhf_cli.display.terminal import Screen, facts_grid
from rlhf_cli.errors import EXIT_OK, ConfigError, RunError
from rlhf_cli.launch.freeze import refuse_foreign_code, refuse_foreign_words
from rlhf_cli.launch.resuming import resumed
from rlhf_cli.launch.run_states import states_of, without_lost_jobs
from rlhf_cli.launch.slurm import check_sweep, submit_sweep
from rlhf_cli.plan.batches import count
from rlhf_cli.plan.checks.machine_checks import without_passed_deadline
from rlhf_cli.plan.prepare import Prepared, prepare_from
from rlhf_cli.runs.provenance import other_versions
from rlhf_cli.runs.run_folder import SWEEP, RunFolder, read_json
from rlhf_cli.runs.run_status import CREATED, FAILED, FINISHED, QUEUED, RUNNING, Status, read_status, refuse_links
from rlhf_cli.runs.writer_lock import only_writer
from rlhf_cli.sweeps import ResumeOptions, SweepOptions, sweep_folder
from rlhf_cli.sweeps.run_jobs import run_jobs
from rlhf_cli.sweeps.search import JOURNAL, continue_search, run_search
from rlhf_cli.sweeps.sweep_folder import ReadyJob, SweepEnd, SweepFolder
from rlhf_cli.sweeps.swept_words import SweepJob, grid_of, search_plan


def run(options: SweepOptions, typed: list[str]) -> SweepEnd:
    """Run the grid or the search in `typed`, all jobs even if some fail. Raise all problems before writing anything."""
    console = Screen()
    if (plan := search_plan(typed)) is not None:
        return run_search(console, plan, typed, options)
    axes, named = grid_of(typed)
    jobs = sweep_folder.checked(named, console)
    sweep_folder.refuse_unlogged_watch(options.watch, [job.prepared.experiment for job in jobs])
    launches = [job.prepared.experiment.launch for job in jobs]
    for_slurm = any(launch.slurm is not None for launch in launches)
    if for_slurm and not all(launch.slurm is not None for launch in launches):
        what = "some runs would go to Slurm and others run here"
        raise ConfigError(what, where="launch", expected="one of the two for the whole sweep", advice="run two sweeps")
    if for_slurm:
        check_sweep(launches)
    folder = sweep_folder.new_sweep_folder(jobs, is_dry=options.dry_run)
    at_once = min(options.at_once, len(jobs))
    where_run = "submitted to Slurm" if for_slurm else f"{at_once} at a time" if at_once > 1 else "one after another"
    facts = {axis.key: ", ".join(axis.texts) for axis in axes} | {"folder": RunFolder(folder).shown}
    console.print(f"[bold]sweep of {count(len(jobs), 'run')}[/], {where_run}")
    console.print(facts_grid((f"  {name}", text) for name, text in facts.items()))
    if options.dry_run:
        for job in jobs:
            console.print(f"  {job.job.name}", soft_wrap=True)
        console.print("nothing was started or written")
        return SweepEnd(EXIT_OK, folder, is_dry=True, planned=named)
    sweep_folder.begin_sweep(folder, typed, [axis.key for axis in axes], named)
    ready = [sweep_folder.freeze(folder, job) for job in jobs]
    sweep = SweepFolder(folder, named)
    with only_writer(RunFolder(sweep.path), what="sweep"):
        if not for_slurm:
            return SweepEnd(run_ready(console, sweep, ready, options), sweep.path)
        submit_sweep(console, [job.folder for job in ready], sweep.path)
    sweep_folder.print_folder(console, sweep.path)
    return SweepEnd(EXIT_OK, sweep.path)


def run_ready(console: Console, sweep: SweepFolder, jobs: Sequence[ReadyJob], options: SweepOptions) -> int:
    """Run jobs of a sweep, show the result of the whole sweep, and return the exit code. The caller holds the lock."""
    try:
        code = run_jobs(console, jobs, options)
    finally:
        sweep_folder.show_outcome(console, sweep)
    if code != EXIT_OK:
        console.print(sweep_folder.resume_hint(sweep), soft_wrap=True, markup=False)
    return code


_LEFT_ALONE = {RUNNING: "is training", QUEUED: "is in Slurm's queue", FINISHED: ""}


def resume_sweep(folder: Path, allowed: ResumeOptions, options: SweepOptions, words: list[str]) -> SweepEnd:
    """Resume the sweep in `folder`, which accepts no `words`. Raise all problems of its jobs first."""
    if words:
        what, hint = "a resumed sweep cannot change its runs", f"rlhf resume {RunFolder(folder).typed}"
        expected = "no overrides, so that its runs remain comparable"
        raise ConfigError(what, where="command line", got=" ".join(words), expected=expected, hint=hint)
    refuse_links(folder)
    if (folder / JOURNAL).is_file():
        return SweepEnd(_resume_search(folder, allowed, options), folder, is_dry=options.dry_run)
    console, sweep = Screen(), sweep_folder.open_sweep(folder)
    here, runs, take_over = RunFolder(sweep.path), map(sweep.run_of, sweep.jobs), allowed.take_over
    begun = {run: read_status(run, take_over=take_over) for run in runs if run.config.is_file()}
    begun = without_lost_jobs({here: Status(CREATED), **begun})
    with only_writer(here, take_over=take_over, what="sweep"):
        statuses = [(job, begun.get(sweep.run_of(job))) for job in sweep.jobs]
        wanted = [(job, status) for job, status in statuses if _is_wanted(status, options)]
        plans = {job.name: (status, _planned(sweep, job, status, options)) for job, status in statuses}
        show_planned(console, here.shown, plans)
        for changed in {other_versions(sweep.run_of(job)) for job, status in wanted if status is not None} - {None}:
            console.print(f"warning: runs started with other versions: {changed}", soft_wrap=True)
        jobs = _ready(sweep, wanted, allowed, options)
        if jobs and jobs[0].experiment.launch.slurm is None:
            return SweepEnd(run_ready(console, sweep, jobs, options), sweep.path)
        if not wanted:
            is_done = all(status is not None and status.state == FINISHED for _, status in statuses)
            why = "no run has failed" if options.only_failed else "every run has finished, or is queued or training"
            why = f"all {len(statuses)} runs have finished" if is_done else why
            console.print(f"nothing to do: {why}")
        elif options.dry_run:
            console.print("nothing was started or written")
        else:
            submit_sweep(console, [job.folder for job in jobs], sweep.path)
        sweep_folder.print_folder(console, sweep.path)
        return SweepEnd(EXIT_OK, sweep.path, options.dry_run, [job for job, _ in wanted] if options.dry_run else [])


def _resume_search(folder: Path, allowed: ResumeOptions, options: SweepOptions) -> int:
    command = f"rlhf resume {RunFolder(folder).typed}"
    if options.only_failed:
        what = "a search proposes new trials and does not repeat failed ones"
        raise ConfigError(what, where="command line", got="--failed", hint=command)
    refuse_foreign_words(folder, trust=allowed.trust, command=command)
    trials = [RunFolder(config.parent) for config in sorted(folder.glob("*/config.yaml"))]
    for trial in trials:
        refuse_foreign_code(trial, trust=allowed.trust, command=command)
    if options.watch is not None:
        sweep_folder.refuse_unlogged_watch(options.watch, [prepare_from(trial, []).experiment for trial in trials])
    typed = read_json(folder / SWEEP).get("overrides")
    if (plan := search_plan([*map(str, typed)] if isinstance(typed, list) else [])) is None:
        raise RunError("the words of this sweep no longer describe a search", where=str(folder / SWEEP))
    without_lost_jobs({RunFolder(folder): Status(CREATED), **states_of(trials)})
    return continue_search(Screen(), plan, folder.resolve(), options, allowed)


def _is_wanted(status: Status | None, options: SweepOptions) -> bool:
    state = status.state if status is not None else None
    return state == FAILED if options.only_failed else state not in _LEFT_ALONE


def _ready(
    sweep: SweepFolder, wanted: Sequence[tuple[SweepJob, Status | None]], allowed: ResumeOptions, options: SweepOptions
) -> list[ReadyJob]:
    """Return the jobs ready to run, none in a dry run. Raise all their problems before anything is written."""
    command = f"rlhf resume {RunFolder(sweep.path).typed}"
    begun = {job.name for job, status in wanted if status is not None}
    prepared: list[Prepared] = []
    refuse_words = cache(partial(refuse_foreign_words, sweep.path, trust=allowed.trust, command=command))  # said once

    def check(job: SweepJob) -> Callable[[], ReadyJob]:
        """Return the function that writes what has to be written of a job."""
        if job.name not in begun:
            refuse_words()
            (new,) = sweep_folder.checked([job], adjust=without_passed_deadline)
            prepared.append(new.prepared)
            return partial(sweep_folder.freeze, sweep.path, new)
        run = sweep.run_of(job)
        refuse_foreign_code(run, trust=allowed.trust, command=command)
        again = resumed(run, prepare_from(run, []), allowed.allowed)
        prepared.append(again.prepared)
        return partial(sweep_folder.ready_again, again, take_over=allowed.take_over)

    ready = sweep_folder.for_each([job for job, _ in wanted], check)
    sweep_folder.refuse_unlogged_watch(options.watch, [one.experiment for one in prepared])
    launches = [one.experiment.launch for one in prepared]
    if launches and launches[0].slurm is not None and not options.dry_run:
        check_sweep(launches)
    return [] if options.dry_run else [make() for make in ready]


def _planned(sweep: SweepFolder, job: SweepJob, status: Status | None, options: SweepOptions) -> str:
    if not _is_wanted(status, options):
        return _LEFT_ALONE.get(status.state, "") if status is not None else ""
    checkpoint = sweep.run_of(job).last_checkpoint()
    if checkpoint is not None:
        return f"continues from step {checkpoint.name.rpartition('-')[2]}"
    return "starts" if status is None or status.state == CREATED else "starts again"
