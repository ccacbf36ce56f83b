"""List runs with their state; one squeue, or two, ask Slurm for the state of all jobs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rlhf_cli.errors import RunError
from rlhf_cli.runs.run_folder import RunFolder, runs_in
from rlhf_cli.runs.run_status import RunRow, RunState, Status, own_job_id, pace, read_status
from rlhf_cli.runs.writer_lock import forget_writer, read_writer

SLURM_TIMEOUT_S = 60.0
_FORMAT = "%i|%T|%r|%j|%k"
_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
_AT_WORK = frozenset({"RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"})
_NO_CLUSTER = ("resolve_ctls_from_dns_srv", "establish a configuration source")  # squeue has no cluster configured
JOB_NAME = "rlhf:"
_OF_OURSELVES = frozenset({"COMPLETED", "FAILED"})
_SAYS_NOTHING = frozenset({"", "Priority", "Resources", "BeginTime"})  # reasons that only mean that a job waits
_ASKED = (RunState.QUEUED, RunState.RUNNING, RunState.KILLED, RunState.PREEMPTED)  # states that Slurm may know better


@dataclass(frozen=True)
class SlurmJob:
    """A job in Slurm: its state's full name, why it waits or ended, and in `comment` its folder; '' if unknown."""

    state: str
    reason: str = ""
    name: str = ""
    comment: str = ""

    @property
    def waits(self) -> bool:
        """Return whether the job is queued."""
        return self.state in _WAITING

    @property
    def has_ended(self) -> bool:
        """Return whether the job is neither queued nor running."""
        return self.state not in _WAITING | _AT_WORK


def ask_slurm(job_ids: Collection[str], *, mine: bool) -> tuple[dict[str, SlurmJob], str | None]:
    """Return Slurm's state of these jobs (`123`, `123_4`), with `mine` of this user's too; and a problem or None.

    Without Slurm and without job ids there is no problem.
    """
    if not job_ids and not mine:
        return {}, None
    if shutil.which("squeue") is None:
        return {}, "squeue is not on this machine" if job_ids else None
    jobs: dict[str, SlurmJob] = {}
    for is_by_user in (True, False) if mine else (False,):
        masters = sorted({job_id.partition("_")[0] for job_id in job_ids if job_id not in jobs})
        if not (is_by_user or masters):
            continue  # else they may be another user's
        whose = ["--me"] if is_by_user else ["--jobs", ",".join(masters)]
        done = run_slurm("squeue", "--noheader", "--array", "--states=all", f"--format={_FORMAT}", *whose)
        if done is None:
            return {}, f"squeue did not answer within {SLURM_TIMEOUT_S:g} s"
        if done.returncode != 0 and "Invalid job id" not in done.stderr:  # as for a single job that is gone
            is_none = not job_ids and any(sign in done.stderr for sign in _NO_CLUSTER)
            return {}, None if is_none else done.stderr.strip() or "squeue failed"
        for line in done.stdout.splitlines():
            if line.count("|") >= 4:
                job_id, *parts = line.split("|", 4)
                jobs[job_id] = SlurmJob(*("" if part in ("None", "(null)") else part for part in parts))
    return jobs, None


def run_slurm(*command: str) -> subprocess.CompletedProcess[str] | None:
    """Run one of Slurm's commands; return None if it is missing or does not answer in time."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=SLURM_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None


def overview(places: list[Path], *, mine: bool = False) -> tuple[list[RunRow], str | None]:
    """Return a row for every run below `places`; with `mine` also for this user's other Slurm jobs that wait or run."""
    read = states_of(folder for place in places for folder in runs_in(place))
    wanted = {status.job_id for status in read.values() if status.job_id is not None and status.state in _ASKED}
    jobs, problem = ask_slurm(wanted, mine=mine)
    rows = []
    for folder, status in read.items():
        job = jobs.get(status.job_id or "")
        if job is not None or problem is None:
            status = with_job_state(status, job)
        s_per_step = log_age_s = left = None
        with suppress(OSError):
            s_per_step, log_age_s = pace(folder)
        is_unfinished = status.state in (RunState.RUNNING, RunState.QUEUED)
        if is_unfinished and status.max_steps is not None and s_per_step is not None:
            left = max(0, status.max_steps - status.step) * s_per_step
        steps, slurm_state = (status.step, status.max_steps, s_per_step, left), job.state if job else None
        about = (status.last_checkpoint, status.job_id, slurm_state, status.reason)
        rows.append(RunRow(folder.shown, status.state, *steps, log_age_s, *about, folder.is_config_edited()))
    seen = {row.job_id for row in rows}
    for job_id, job in jobs.items() if mine else ():
        if job.name.startswith(JOB_NAME) and job_id not in seen and not job.has_ended:  # in no folder here
            state, shown = RunState.QUEUED if job.waits else RunState.RUNNING, job.comment or job.name
            reason = "in another folder" if job.reason in _SAYS_NOTHING else job.reason
            rows.append(RunRow(shown, state, job_id=job_id, slurm_state=job.state, reason=reason))
    return rows, problem


def states_of(folders: Iterable[RunFolder]) -> dict[RunFolder, Status]:
    """Return the states of runs; UNREADABLE for a damaged one, which must not hide the others."""
    read: dict[RunFolder, Status] = {}
    for folder in dict.fromkeys(folders):
        try:
            read[folder] = read_status(folder)
        except RunError as error:
            read[folder] = Status(RunState.UNREADABLE, reason=f"{error.what}: {error.got}")
    return read


def without_lost_jobs(runs: Mapping[RunFolder, Status]) -> dict[RunFolder, Status]:
    """Return the states of runs, KILLED if the job has ended or was cancelled, QUEUED if it waits again.

    Ask Slurm once, but not about the job of this process nor about live processes of this machine; if it does not
    answer, the states stay. The folder of a run or a sweep whose job has ended needs no `--take-over` afterwards. A
    submission that was killed before Slurm answered leaves a run without an id.
    """
    asked = {folder: job_id for folder, status in runs.items() if (job_id := _unsure_job(folder, status)) is not None}
    jobs, problem = ask_slurm(set(asked.values()), mine=False)
    known = dict(runs)
    for folder, status in runs.items():
        if status.state == RunState.QUEUED and status.job_id is None:
            known[folder] = replace(status, state=RunState.KILLED, reason="its submission to Slurm was cut off")
        elif folder in asked and problem is None:
            job = jobs.get(asked[folder])
            found = with_job_state(status, job)
            known[folder] = found if found.state in (RunState.KILLED, RunState.QUEUED) else status
            if job is not None and job.has_ended:  # one that is not known may run in another cluster
                forget_writer(folder, found)
    return known


def _unsure_job(folder: RunFolder, status: Status) -> str | None:
    """Return the job of a run or a sweep whose process is not known to live; None without one, or in this very job."""
    writer = read_writer(folder)
    process, job_id = (writer.process, writer.slurm_job) if writer is not None else (None, None)
    process, job_id = status.process or process, status.job_id if status.state in _ASKED else job_id
    return None if job_id == own_job_id() or (process is not None and process.is_alive()) else job_id


def with_job_state(status: Status, job: SlurmJob | None) -> Status:
    """Return a status updated with Slurm's state of its job, None if Slurm does not know it. Final states stay."""
    if status.job_id is None or status.state not in _ASKED:
        return status
    state, reason = status.state, status.reason
    begun = ", before it began" if state == RunState.QUEUED else ""
    if job is None:
        if state != RunState.PREEMPTED:  # Slurm forgets a job some minutes after its end
            state, reason = RunState.KILLED, reason or f"Slurm has no job {status.job_id} any more{begun}"
    elif job.waits:
        goes_on = f"goes on from {status.last_checkpoint}" if status.last_checkpoint else ""
        waits_for = "" if job.reason in _SAYS_NOTHING else job.reason
        state, reason = RunState.QUEUED, ", ".join(part for part in (goes_on, waits_for) if part) or None
    elif job.has_ended and state != RunState.PREEMPTED:
        state, reason = RunState.KILLED, f"Slurm: {job.state}{begun}"
    elif job.has_ended and job.state not in _OF_OURSELVES:  # a run that saved in time makes its job fail
        reason = "; ".join(part for part in (reason, f"Slurm: {job.state}") if part)
    elif state == RunState.QUEUED:
        state, reason = RunState.RUNNING, "starting"
    return replace(status, state=state, reason=reason)
