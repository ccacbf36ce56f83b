"""Resume a sweep: run the jobs that are missing, stopped, killed or failed, each with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlhf_cli.display.sweep_tables import show_planned
from rlhf_cli.display.terminal import Screen
from rlhf_cli.errors import EXIT_OK, ConfigError, UserError
from rlhf_cli.launch.resuming import Resumed, resumed
from rlhf_cli.launch.slurm_submission import check_slurm, submit_sweep
from rlhf_cli.launch.trust import refuse_foreign_code, refuse_foreign_words
from rlhf_cli.plan.prepare import prepare_from
from rlhf_cli.runs.provenance import other_versions
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_overview import refuse_links
from rlhf_cli.runs.run_status import CREATED, FAILED, FINISHED, QUEUED, RUNNING, Status, read_status
from rlhf_cli.runs.writer_lock import only_writer
from rlhf_cli.sweeps.checked_jobs import (
    CheckedJob,
    JobProblems,
    ReadyJob,
    SweepFolder,
    checked,
    freeze,
    open_sweep,
    ready_again,
)
from rlhf_cli.sweeps.outcome import SweepEnd, print_folder
from rlhf_cli.sweeps.search import JOURNAL, continue_search, read_search
from rlhf_cli.sweeps.sweep import run_ready
from rlhf_cli.sweeps.sweep_grid import SweepJob
from rlhf_cli.sweeps.sweep_options import ResumeOptions, SweepOptions

_LEFT_ALONE = {RUNNING: "is training", QUEUED: "is in Slurm's queue", FINISHED: ""}


def resume_sweep(folder: Path, allowed: ResumeOptions, options: SweepOptions, words: list[str]) -> SweepEnd:
    """Resume the sweep in `folder` and return how it ended. `words` are other typed overrides; a sweep accepts none.

    Raise RunError if another process runs it, and any problem of the jobs before the first one starts.
    """
    if words:
        raise ConfigError(
            "a resumed sweep cannot change its runs",
            where="command line",
            got=" ".join(words),
            expected="no overrides, so that its runs remain comparable",
            hint=f"rlhf resume {RunFolder(folder).shown}",
        )
    refuse_links(folder)
    if (folder / JOURNAL).is_file():
        return SweepEnd(_resume_search(folder, allowed, options), folder, is_dry=options.dry_run)
    console, sweep = Screen(), open_sweep(folder)
    with only_writer(RunFolder(sweep.path), take_over=allowed.take_over, what="sweep"):
        statuses = [(job, _status(sweep, job)) for job in sweep.jobs]
        wanted = [(job, status) for job, status in statuses if _is_wanted(status, options)]
        plans = {job.name: (status, _planned(sweep, job, status, options)) for job, status in statuses}
        show_planned(console, RunFolder(sweep.path).shown, plans)
        for changed in {other_versions(sweep.run_of(job)) for job, status in wanted if status is not None} - {None}:
            console.print(f"warning: runs started with other versions: {changed}", highlight=False, soft_wrap=True)
        jobs = _ready(sweep, wanted, allowed, dry_run=options.dry_run)
        if jobs and jobs[0].experiment.launch.slurm is None:
            return SweepEnd(run_ready(console, sweep, jobs, options), sweep.path)
        if not wanted:
            is_done = all(status is not None and status.state == FINISHED for _, status in statuses)
            why = "no run has failed" if options.only_failed else "every run has finished, or is queued or training"
            why = f"all {len(statuses)} runs have finished" if is_done else why
            console.print(f"nothing to do: {why}", highlight=False)
        elif options.dry_run:
            console.print("nothing was started or written")
        else:
            check_slurm(jobs[0].experiment.launch, count=len(jobs))
            submit_sweep(console, [job.folder for job in jobs], sweep.path)
        print_folder(console, sweep.path)
        return SweepEnd(EXIT_OK, sweep.path, is_dry=options.dry_run)


def _resume_search(folder: Path, allowed: ResumeOptions, options: SweepOptions) -> int:
    """Run the trials of a search that were stopped, then the remaining ones, and return the exit code."""
    if options.only_failed:
        raise ConfigError(
            "a search proposes new trials and does not repeat failed ones",
            where="command line",
            got="--failed",
            hint=f"rlhf resume {RunFolder(folder).shown}",
        )
    command = f"rlhf resume {RunFolder(folder).shown}"
    refuse_foreign_words(folder, trust=allowed.trust, command=command)
    for config in sorted(folder.glob("*/config.yaml")):
        refuse_foreign_code(RunFolder(config.parent), trust=allowed.trust, command=command)
    return continue_search(Screen(), read_search(folder), folder.resolve(), options, allowed)


def _status(sweep: SweepFolder, job: SweepJob) -> Status | None:
    run = sweep.run_of(job)
    return read_status(run) if run.config.is_file() else None


def _is_wanted(status: Status | None, options: SweepOptions) -> bool:
    """Return whether to run a job now; `status` is None if it was never frozen."""
    if options.only_failed:
        return status is not None and status.state == FAILED
    return status is None or status.state not in _LEFT_ALONE


def _ready(
    sweep: SweepFolder, wanted: Sequence[tuple[SweepJob, Status | None]], allowed: ResumeOptions, *, dry_run: bool
) -> list[ReadyJob]:
    """Return the jobs ready to run, none with `dry_run`. Raise all their problems before anything is written."""
    problems = JobProblems()
    command = f"rlhf resume {RunFolder(sweep.path).shown}"
    begun: dict[str, Resumed] = {}
    for job in (job for job, status in wanted if status is not None):
        run = sweep.run_of(job)
        try:
            refuse_foreign_code(run, trust=allowed.trust, command=command)
            begun[job.name] = resumed(run, prepare_from(run, []), allowed.allowed)
        except UserError as error:
            problems.add(error, job.name)
    missing = [job for job, status in wanted if status is None]
    new: dict[str, CheckedJob] = {}
    try:
        if missing:
            refuse_foreign_words(sweep.path, trust=allowed.trust, command=command)
        new = {checked_job.job.name: checked_job for checked_job in checked(missing)}
    except UserError as error:
        problems.add(error, ", ".join(job.name for job in missing))
    problems.raise_any(len(wanted))
    return [
        ready_again(begun[job.name], job.name, take_over=allowed.take_over)
        if job.name in begun
        else freeze(sweep.path, new[job.name])
        for job, _ in (() if dry_run else wanted)
    ]


def _planned(sweep: SweepFolder, job: SweepJob, status: Status | None, options: SweepOptions) -> str:
    """Return what is done with a job now, '' for nothing."""
    if not _is_wanted(status, options):
        return _LEFT_ALONE.get(status.state, "") if status is not None else ""
    checkpoint = sweep.run_of(job).last_checkpoint()
    if checkpoint is not None:
        return f"continues from step {checkpoint.name.rpartition('-')[2]}"
    return "starts" if status is None or status.state == CREATED else "starts again"
