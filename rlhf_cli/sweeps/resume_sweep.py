"""Resume a sweep: run the jobs that are missing, stopped, killed or failed, each with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.display.sweep_tables import PlannedJob, show_planned
from rlhf_cli.display.terminal import Screen
from rlhf_cli.errors import EXIT_OK, ConfigError, UserError, in_one_line
from rlhf_cli.launch.resume_run import refuse_foreign_code, refuse_foreign_words
from rlhf_cli.launch.resuming import resumed
from rlhf_cli.launch.run_states import submit_sweep
from rlhf_cli.launch.slurm_submission import check_slurm
from rlhf_cli.plan.prepare import prepare_from
from rlhf_cli.runs.provenance import other_versions
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_overview import refuse_links
from rlhf_cli.runs.run_status import CREATED, FAILED, FINISHED, QUEUED, RUNNING, Status, read_status, told_state
from rlhf_cli.runs.writer_lock import only_writer
from rlhf_cli.sweeps.checked_jobs import JobProblems, ReadyJob, SweepFolder, checked, freeze, open_sweep, ready_again
from rlhf_cli.sweeps.outcome import SweepEnd, print_folder
from rlhf_cli.sweeps.search import JOURNAL, continue_search, read_search
from rlhf_cli.sweeps.sweep import run_ready
from rlhf_cli.sweeps.sweep_grid import SweepJob
from rlhf_cli.sweeps.sweep_options import ResumeOptions, SweepOptions

_MISSING = "missing"
_LEFT_ALONE = {RUNNING: "is being trained", QUEUED: "Slurm has it", FINISHED: ""}


@dataclass(frozen=True)
class _JobSoFar:
    """A job and its status so far; None if it was never frozen."""

    job: SweepJob
    status: Status | None

    def is_wanted(self, *, only_failed: bool) -> bool:
        """Return whether to run it now."""
        if self.status is None:
            return not only_failed
        return self.status.state == FAILED if only_failed else self.status.state not in _LEFT_ALONE


def resume_sweep(folder: Path, allowed: ResumeOptions, options: SweepOptions, words: list[str]) -> SweepEnd:
    """Resume the sweep in `folder` and return how it ended. `words` are other typed overrides; a sweep accepts none.

    Raise RunError if another process runs it, and any problem of the jobs before the first one starts.
    """
    if words:
        raise ConfigError(
            "a sweep goes on as it was frozen",
            where="command line",
            got=" ".join(words),
            expected="no other values: its runs are to be compared",
            hint=f"rlhf resume {RunFolder(folder).shown}",
        )
    refuse_links(folder)
    if (folder / JOURNAL).is_file():
        return SweepEnd(_resume_search(folder, allowed, options), folder, is_dry=options.dry_run)
    console, sweep = Screen(), open_sweep(folder)
    with only_writer(RunFolder(sweep.path), take_over=allowed.take_over, what="sweep"):
        known = [_JobSoFar(job, _status(sweep, job)) for job in sweep.jobs]
        wanted = [one for one in known if one.is_wanted(only_failed=options.only_failed)]
        show_planned(console, RunFolder(sweep.path).shown, [_planned(sweep, one, options) for one in known])
        for changed in {other_versions(sweep.run_of(one.job)) for one in wanted if one.status is not None} - {None}:
            console.print(f"warning: jobs began with other versions: {changed}", highlight=False, soft_wrap=True)
        jobs = _ready(sweep, wanted, allowed, dry_run=options.dry_run)
        if jobs and not options.dry_run and jobs[0].experiment.launch.slurm is None:
            return SweepEnd(run_ready(console, sweep, jobs, options), sweep.path)
        if not wanted:
            console.print("nothing to do: " + _why_nothing(known, options), highlight=False)
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
            "a search does not try again what has failed: it proposes something else",
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


def _ready(sweep: SweepFolder, wanted: Sequence[_JobSoFar], allowed: ResumeOptions, *, dry_run: bool) -> list[ReadyJob]:
    """Return the jobs ready to run. Raise all their problems before anything is written."""
    problems = JobProblems()
    going_on = []
    missing = [one.job for one in wanted if one.status is None]
    for one in wanted:
        run = sweep.run_of(one.job)
        try:
            if one.status is not None:
                refuse_foreign_code(run, trust=allowed.trust, command=f"rlhf resume {RunFolder(sweep.path).shown}")
                going_on.append((one, resumed(run, prepare_from(run, []), allowed.allowed)))
        except UserError as error:
            problems.add(error, one.job.name)
    try:
        if missing:
            refuse_foreign_words(sweep.path, trust=allowed.trust, command=f"rlhf resume {RunFolder(sweep.path).shown}")
        anew = checked(missing)
    except UserError as error:
        problems.add(error, ", ".join(job.name for job in missing))
        anew = []
    problems.raise_any(len(wanted))
    ready: dict[str, ReadyJob] = {}
    for one, begun in going_on:
        ready[one.job.name] = ready_again(begun, one.job.name, take_over=allowed.take_over, dry_run=dry_run)
    for new in anew:
        folder = sweep.run_of(new.job) if dry_run else freeze(sweep.path, new)
        ready[new.job.name] = ReadyJob(new.job.name, folder, new.prepared.experiment, new.plan)
    return [ready[one.job.name] for one in wanted]


def _planned(sweep: SweepFolder, one: _JobSoFar, options: SweepOptions) -> PlannedJob:
    """Return the table row that says what is done with a job, and why."""
    status = one.status
    if status is None:
        return PlannedJob(one.job.name, _MISSING, 0, None, "begins" if not options.only_failed else "", "")
    what = _LEFT_ALONE.get(status.state, "")
    if one.is_wanted(only_failed=options.only_failed):
        checkpoint = sweep.run_of(one.job).last_checkpoint()
        step = checkpoint.name.rpartition("-")[2] if checkpoint is not None else None
        again = "begins" if status.state == CREATED else "begins again"
        what = f"goes on from step {step}" if step is not None else again
    reason = in_one_line(status.reason or "") if status.state != FINISHED else ""
    state, _, _ = told_state(status.state, status.reason).partition(" ")
    return PlannedJob(one.job.name, state, status.step, status.max_steps, what, reason)


def _why_nothing(known: Sequence[_JobSoFar], options: SweepOptions) -> str:
    states = [one.status.state if one.status is not None else _MISSING for one in known]
    if all(state == FINISHED for state in states):
        return f"all {len(states)} runs have finished"
    return "no run has failed" if options.only_failed else "every run has finished, or somebody trains it"
