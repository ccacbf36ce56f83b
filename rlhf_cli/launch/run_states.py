"""List runs with their state, Slurm's jobs among them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from rlhf_cli.config.schema.launch_sections import Launch
from rlhf_cli.display.start_panel import show_start
from rlhf_cli.errors import RunError
from rlhf_cli.launch.freeze import create_run, experiment_name
from rlhf_cli.launch.slurm_node import SLURM_FOLDER
from rlhf_cli.launch.slurm_queue import SlurmJob, ask_slurm
from rlhf_cli.launch.slurm_submission import check_slurm, submit
from rlhf_cli.plan.prepare import Prepared
from rlhf_cli.plan.run_plan import Plan
from rlhf_cli.runs.run_folder import RunFolder, runs_in
from rlhf_cli.runs.run_overview import Overview, RunState, pace
from rlhf_cli.runs.run_status import KILLED, PREEMPTED, QUEUED, RUNNING, UNREADABLE, Status, read_status

_JOB_NAME = "rlhf:"
_OF_OURSELVES = frozenset({"COMPLETED", "FAILED"})
_SAYS_NOTHING = frozenset({"", "Priority", "Resources", "BeginTime"})
"""Slurm reasons that only mean that a job waits for its turn."""
_ASKED = (QUEUED, RUNNING, KILLED, PREEMPTED)
"""States that Slurm may know better."""


def overview(places: list[Path], *, mine: bool = False) -> Overview:
    """Return a row for every run below `places`; with `mine` also for every queued or running Slurm job of this user.

    Raises RunError for a place without runs.
    """
    read: dict[RunFolder, Status] = {}
    for folder in dict.fromkeys(folder for place in places for folder in runs_in(place)):
        try:
            read[folder] = read_status(folder)
        except RunError as error:  # one damaged run must not hide the others
            read[folder] = Status(UNREADABLE, reason=f"{error.what}: {error.got}")
    answer = ask_slurm(
        {status.job_id for status in read.values() if status.job_id is not None and status.state in _ASKED}, mine=mine
    )
    rows = []
    for folder, status in read.items():
        job = answer.jobs.get(status.job_id or "")
        if job is not None or answer.problem is None:
            status = conclude(status, job)
        rows.append(_row(folder, status, job))
    seen = {row.job_id for row in rows}
    for job_id, job in answer.jobs.items() if mine else ():
        # an unfinished job of ours, from a folder that was not scanned
        if job.name.startswith(_JOB_NAME) and job_id not in seen and not job.has_ended:
            state, shown = QUEUED if job.waits else RUNNING, job.comment or job.name
            reason = "in another folder" if job.reason in _SAYS_NOTHING else job.reason
            rows.append(RunState(shown, state, job_id=job_id, slurm_state=job.state, reason=reason))
    return Overview(rows, answer.problem)


def conclude(status: Status, job: SlurmJob | None) -> Status:
    """Return a status updated with Slurm's state of its job; `job` is None if Slurm does not know it.

    A run whose status is finished or failed stays so.
    """
    if status.job_id is None or status.state not in _ASKED:
        return status
    state, reason = status.state, status.reason
    begun = ", before it began" if state == QUEUED else ""
    if job is None:
        if state != PREEMPTED:  # Slurm forgets a job some minutes after its end
            state, reason = KILLED, reason or f"Slurm has no job {status.job_id} any more{begun}"
    elif job.waits:
        goes_on = f"goes on from {status.last_checkpoint}" if status.last_checkpoint else ""
        waits_for = "" if job.reason in _SAYS_NOTHING else job.reason
        state, reason = QUEUED, ", ".join(part for part in (goes_on, waits_for) if part) or None
    elif job.has_ended and state != PREEMPTED:
        state, reason = KILLED, f"Slurm: {job.state}{begun}"
    elif job.has_ended and job.state not in _OF_OURSELVES:  # a run that saved in time makes its job fail
        reason = "; ".join(part for part in (reason, f"Slurm: {job.state}") if part)
    elif state == QUEUED:
        state, reason = RUNNING, "starting"
    return replace(status, state=state, reason=reason)


def _row(folder: RunFolder, status: Status, job: SlurmJob | None) -> RunState:
    s_per_step = log_age_s = left = None
    with suppress(OSError):
        s_per_step, log_age_s = pace(folder)
    if status.state in (RUNNING, QUEUED) and status.max_steps is not None and s_per_step is not None:
        left = max(0, status.max_steps - status.step) * s_per_step
    return RunState(
        run=folder.shown,
        state=status.state,
        step=status.step,
        max_steps=status.max_steps,
        s_per_step=s_per_step,
        time_left_s=left,
        log_age_s=log_age_s,
        last_checkpoint=status.last_checkpoint,
        job_id=status.job_id,
        slurm_state=job.state if job else None,
        reason=status.reason,
    )


def submit_once(console: Console, prepared: Prepared, plan: Plan) -> RunFolder:
    """Submit a checked experiment, newly frozen, and return its folder.

    Raises RunError if the folder cannot be created and ConfigError if Slurm refuses the job.
    """
    check_slurm(prepared.experiment.launch)  # before there is a folder
    folder = create_run(prepared.experiment, prepared.composed, files=plan.files)
    show_start(console, prepared.experiment, plan, title=experiment_name(prepared.composed), folder=folder.shown)
    submit_frozen(console, folder)
    return folder


def submit_frozen(console: Console, folder: RunFolder) -> None:
    """Submit a frozen run and print where to look. Raises ConfigError if Slurm refuses the job."""
    (job_id,) = submit([folder], _launch(folder), folder=folder.path, name=f"{_JOB_NAME}{folder.label}")
    _say(console, f"job {job_id}", f"{job_id}_0_log.out", folder.path, job_id)
    console.print(f"run folder: {folder.shown}", soft_wrap=True, highlight=False)


def submit_sweep(console: Console, runs: list[RunFolder], sweep_dir: Path) -> None:
    """Submit the frozen runs of a sweep as one array, or one array per value of `launch` if that is swept.

    Raises ConfigError if Slurm refuses an array.
    """
    arrays: dict[str, list[RunFolder]] = {}
    for run in runs:
        arrays.setdefault(_launch(run).model_dump_json(), []).append(run)
    for of_one_launch in arrays.values():
        name = f"{_JOB_NAME}{'/'.join(sweep_dir.parts[-2:])}"
        ids = submit(of_one_launch, _launch(of_one_launch[0]), folder=sweep_dir, name=name)
        master = ids[0].partition("_")[0]
        shown = f"job {ids[0]}" if len(ids) == 1 else f"array {master}: {len(ids)} jobs, {ids[0]} to {ids[-1]}"
        logs = f"{ids[0] if len(ids) == 1 else f'{master}_*'}_0_log.out"
        _say(console, shown, logs, sweep_dir, master)


def _launch(run: RunFolder) -> Launch:
    return Launch.model_validate(run.read_config()["launch"])


def _say(console: Console, what: str, logs: str, folder: Path, job_id: str) -> None:
    shown = RunFolder(folder).shown
    lines = (
        f"submitted to Slurm: {what}",
        f"  logs:   {shown}/{SLURM_FOLDER}/{logs}",
        f"  watch:  rlhf status {shown}",
        f"  cancel: scancel {job_id}",
    )
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)
