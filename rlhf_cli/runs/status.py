"""Reads and writes status.json: what state a run is in, by its own last word and by whether its process still lives."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import asdict, dataclass, replace
from functools import cache

from pydantic import TypeAdapter

from rlhf_cli.runs.run_folder import RunFolder, read_json, write_json
from rlhf_cli.runs.running_reward import while_running

CREATED, RUNNING, FINISHED, FAILED, PREEMPTED = "created", "running", "finished", "failed", "preempted"
QUEUED = "queued"
"""A scheduler has it, under `job_id`, and no process of it lives yet."""
KILLED = "killed"
"""This state is never written: a reader concludes it from a status of `running` whose process is gone."""


@dataclass(frozen=True)
class Status:
    """The state of one run, as status.json holds it.

    `step` and `max_steps` count optimizer steps; `updated_at` is in seconds since the epoch; `job_id` is Slurm's name
    of the job, `123` or `123_4`. What is not known is None.
    """

    state: str
    step: int = 0
    max_steps: int | None = None
    reason: str | None = None
    failing_rank: int | None = None
    last_checkpoint: str | None = None
    warnings: int = 0
    pid: int | None = None
    host: str | None = None
    job_id: str | None = None
    updated_at: float = 0.0


def read_status(folder: RunFolder) -> Status:
    """Return the run's state; a `running` run whose process is dead on this machine is reported as killed."""
    status = _status().validate_python({"state": CREATED, **read_json(folder.status)})
    if status.state == RUNNING and status.host == socket.gethostname() and not _is_alive(status.pid):
        return replace(
            status, state=KILLED, reason=f"process {status.pid} is gone without a last word{while_running(folder.path)}"
        )
    return status


def update_status(folder: RunFolder, **changes: object) -> Status:
    """Merge `changes` into status.json, stamp them with the time and return the new state."""
    content = {**read_json(folder.status), **changes, "updated_at": time.time()}
    status = _status().validate_python(content)
    write_json(folder.status, asdict(status))
    return status


def claim(folder: RunFolder) -> None:
    """Record that this very process now works on the run."""
    update_status(
        folder,
        state=RUNNING,
        pid=os.getpid(),
        host=socket.gethostname(),
        job_id=own_job_id(),
        reason=None,
        failing_rank=None,
        warnings=0,
    )


def own_job_id() -> str | None:
    """Return Slurm's name of the job that this process belongs to, `123` or, in an array, `123_4`; None outside."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")


@cache
def _status() -> TypeAdapter[Status]:
    return TypeAdapter(Status)


def _is_alive(pid: int | None) -> bool:
    if pid is None:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
