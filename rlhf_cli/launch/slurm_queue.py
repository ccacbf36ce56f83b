"""Query Slurm for the state of jobs, by one squeue for all of them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Collection
from dataclasses import dataclass

SLURM_TIMEOUT_S = 60.0
_FORMAT = "%i|%T|%r|%j|%k"
_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
_AT_WORK = frozenset({"RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"})
_NO_CLUSTER = ("resolve_ctls_from_dns_srv", "establish a configuration source")
"""Messages of squeue if it is installed but has no cluster configured."""


@dataclass(frozen=True)
class SlurmJob:
    """A job in Slurm. `state` is Slurm's full state name, such as PENDING, RUNNING, TIMEOUT, NODE_FAIL.

    `reason` is why it waits or ended, or ''; `comment` is the folder that it was submitted for.
    """

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


@dataclass(frozen=True)
class SlurmAnswer:
    """Slurm's answer: job id -> job, for the jobs it knows. `problem` is why the query failed, or None."""

    jobs: dict[str, SlurmJob]
    problem: str | None = None


def ask_slurm(job_ids: Collection[str], *, mine: bool = False) -> SlurmAnswer:
    """Return Slurm's state of these jobs, `123` or `123_4`; with `mine`, also of every job of this user.

    Without Slurm (no squeue, or no cluster) and without job ids, the answer is empty and has no problem.
    """
    if not job_ids and not mine:
        return SlurmAnswer({})
    if shutil.which("squeue") is None:
        return SlurmAnswer({}, "squeue is not on this machine" if job_ids else None)
    masters = sorted({job_id.partition("_")[0] for job_id in job_ids})
    whose = ["--me"] if mine else ["--jobs", ",".join(masters)]
    done = run_slurm("squeue", "--noheader", "--array", "--states=all", f"--format={_FORMAT}", *whose)
    if done is None:
        return SlurmAnswer({}, f"squeue did not answer within {SLURM_TIMEOUT_S:g} s")
    # A query for a single job that squeue no longer lists fails.
    if done.returncode != 0 and "Invalid job id" not in done.stderr:
        is_none = not job_ids and any(sign in done.stderr for sign in _NO_CLUSTER)
        return SlurmAnswer({}, None if is_none else done.stderr.strip() or "squeue failed")
    jobs = {}
    for line in done.stdout.splitlines():
        if line.count("|") >= 4:
            job_id, *parts = line.split("|", 4)
            jobs[job_id] = SlurmJob(*("" if part in ("None", "(null)") else part for part in parts))
    return SlurmAnswer(jobs)


def run_slurm(*command: str) -> subprocess.CompletedProcess[str] | None:
    """Run one of Slurm's commands; return None if it is missing or does not answer in time."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=SLURM_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
