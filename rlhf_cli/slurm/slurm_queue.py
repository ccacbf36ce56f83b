"""Asks Slurm what has become of jobs: squeue for all of them at once, sacct for those that squeue has forgotten."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Collection
from dataclasses import dataclass

_TIMEOUT_S = 20.0
_FORMAT = "%i|%T|%r|%j|%k"
_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
_AT_WORK = frozenset({"RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"})
_NO_CLUSTER = ("resolve_ctls_from_dns_srv", "establish a configuration source")
"""What squeue says where it is installed and nobody has ever told it of a cluster."""


@dataclass(frozen=True)
class Job:
    """A job as Slurm knows it. `state` is Slurm's word in full, such as PENDING, RUNNING, TIMEOUT, NODE_FAIL.

    `reason` is why it waits or has ended, '' where there is none; `comment` is the folder that it was submitted for.
    """

    state: str
    reason: str = ""
    name: str = ""
    comment: str = ""

    @property
    def waits(self) -> bool:
        """Return whether the job is in line."""
        return self.state in _WAITING

    @property
    def has_ended(self) -> bool:
        """Return whether nothing of the job runs or will run."""
        return self.state not in _WAITING | _AT_WORK


@dataclass(frozen=True)
class Answer:
    """What Slurm said: job id -> job, for those that it knows. `problem` says why it could not be asked, else None."""

    jobs: dict[str, Job]
    problem: str | None = None


def ask_slurm(job_ids: Collection[str], *, mine: bool = False) -> Answer:
    """Return what Slurm knows of these jobs, `123` or `123_4`; with `mine`, also of every job of this user.

    Where there is no Slurm (no squeue, or one without a cluster) and nothing was named, the answer is empty and no
    problem.
    """
    if not job_ids and not mine:
        return Answer({})
    if shutil.which("squeue") is None:
        return Answer({}, "squeue is not on this machine" if job_ids else None)
    masters = sorted({job_id.partition("_")[0] for job_id in job_ids})
    whose = ["--me"] if mine else ["--jobs", ",".join(masters)]
    listed = _say("squeue", "--noheader", "--array", "--states=all", f"--format={_FORMAT}", *whose)
    if isinstance(listed, str):
        if "Invalid job id" not in listed:
            is_none = not job_ids and any(sign in listed for sign in _NO_CLUSTER)
            return Answer({}, None if is_none else listed)
        listed = []  # it was asked about one job alone, and has forgotten it
    jobs = dict(_job(line) for line in listed if line.count("|") >= 4)
    if forgotten := [job_id for job_id in job_ids if job_id not in jobs]:
        jobs |= _of_accounting(forgotten)
    return Answer(jobs)


def _job(line: str) -> tuple[str, Job]:
    job_id, *parts = line.split("|", 4)
    state, reason, name, comment = ("" if part in ("None", "(null)") else part for part in parts)
    return job_id, Job(state, reason, name, comment)


def _of_accounting(job_ids: list[str]) -> dict[str, Job]:
    """Return the jobs that Slurm's database knows, none where the cluster has no database."""
    masters = ",".join(sorted({job_id.partition("_")[0] for job_id in job_ids}))
    if shutil.which("sacct") is None:
        return {}
    listed = _say("sacct", "--noheader", "--parsable2", "--allocations", "--jobs", masters, "--format=JobID,State")
    if isinstance(listed, str):
        return {}
    jobs = {}
    for line in listed:
        job_id, _, state = line.partition("|")
        if job_id in job_ids and state:
            jobs[job_id] = Job(state.split()[0])  # `CANCELLED by 1000`
    return jobs


def _say(*command: str) -> list[str] | str:
    """Return the lines that a command of Slurm's prints, or, as one text, why it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return f"{command[0]} did not answer within {_TIMEOUT_S:g} s"
    return done.stdout.splitlines() if done.returncode == 0 else done.stderr.strip() or f"{command[0]} failed"
