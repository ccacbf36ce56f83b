"""Read and write status.json: the state of a run, from its last record and whether its process still lives.

A process that crashes or is killed leaves the state `running`. The next reader replaces it with `killed`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from dataclasses import asdict, dataclass, replace
from functools import cache

from pydantic import TypeAdapter, ValidationError

from rlhf_cli.errors import CTRL_C, RunError
from rlhf_cli.json_values import JsonTree
from rlhf_cli.runs.process_identity import ProcessIdentity, this_process
from rlhf_cli.runs.run_folder import RunFolder, overwrite, read_json, unreadable, write_json
from rlhf_cli.runs.running_reward import while_running

CREATED, RUNNING, FINISHED, FAILED, PREEMPTED = "created", "running", "finished", "failed", "preempted"
QUEUED = "queued"
"""A scheduler has queued the run under `job_id`; no process of it lives yet."""
KILLED = "killed"
"""A reader sets this state if the status is `running` but the process is gone."""
WRITER_LOCK = ".writer.lock"
"""A process that writes into a run folder holds a lock on this file (writer_lock.py)."""
_LAST_WORDS = (FINISHED, FAILED, PREEMPTED)


@dataclass(frozen=True)
class Status:
    """The state of one run, as stored in status.json.

    `step` and `max_steps` count optimizer steps. `reason` is why the run ended before its last step; for a finished run
    it is the stopping rule. `updated_at` is in seconds since the epoch. `job_id` is Slurm's job id, `123` or `123_4`.
    `pid`, `host`, `start_ticks` and `boot` identify the main process (process_identity.py). Unknown values are None.
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
    start_ticks: int | None = None
    boot: str | None = None
    updated_at: float = 0.0


def told_state(state: str, reason: str | None) -> str:
    """Return a state in words; a run stopped by its user is `stopped by Ctrl-C`, not preempted."""
    return f"stopped by {CTRL_C}" if state == PREEMPTED and reason == CTRL_C else state


def stopped_by_rule(status: Status) -> str | None:
    """Return the stopping rule, with its values, that ended a finished run; None if it ran to its last step.

    Such a run is complete and its model is saved.
    """
    return status.reason if status.state == FINISHED else None


def read_status(folder: RunFolder) -> Status:
    """Return the run's state. If a `running` run's process on this machine is dead, record and return `killed`.

    Detects a reused pid and a reboot of the machine. Raises RunError if status.json cannot be read.
    """
    try:
        content = read_json(folder.status)
        status = _status().validate_python({"state": CREATED, **content})
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in problem["loc"])
        raise unreadable(folder.status, f"{place}: {problem['msg']}, got {problem['input']!r}") from None
    if status.state == RUNNING and not _may_live(status):
        reason = f"process {status.pid} is gone without a last word{while_running(folder.path)}"
        status = replace(status, state=KILLED, reason=reason)
        _write_killed(folder, status, content)
    return status


def _write_killed(folder: RunFolder, killed: Status, content: JsonTree) -> None:
    """Record that a run was killed, keeping the time of its last update.

    Does nothing if another process works on the run, its status is no longer `content`, or the folder is not writable.
    """
    from filelock import FileLock, Timeout

    with contextlib.suppress(OSError, Timeout, RunError), FileLock(folder.path / WRITER_LOCK, timeout=0):
        if read_json(folder.status) == content:
            write_json(folder.status, asdict(killed))


def name_who_asked(folder: RunFolder, asked_by: str) -> Status:
    """Record who asked a run to end, and return its status; the process itself only saw SIGTERM."""
    status = read_status(folder)
    handed_on, reason = signal.SIGTERM.name, status.reason or ""
    if status.state != PREEMPTED or not reason.startswith(handed_on):
        return status
    return update_status(folder, reason=asked_by + reason.removeprefix(handed_on))


def update_status(folder: RunFolder, **changes: object) -> Status:
    """Merge `changes` into status.json with the current time, and return the new status.

    A final state is flushed to disk, so that a finished run is not started again after a power cut.
    """
    content = {**_known(folder), **changes, "updated_at": time.time()}
    status = _status().validate_python(content)
    try:
        write_json(folder.status, asdict(status), durable=status.state in _LAST_WORDS)
    except OSError:
        if status.state not in _LAST_WORDS or not folder.status.is_file():
            raise
        overwrite(folder.status, json.dumps(asdict(status), indent=2) + "\n")
    return status


def claim(folder: RunFolder) -> None:
    """Record that the current process now works on the run."""
    begins = {"reason": None, "failing_rank": None, "warnings": 0}
    update_status(folder, state=RUNNING, **asdict(this_process()), job_id=own_job_id(), **begins)


def _known(folder: RunFolder) -> JsonTree:
    """Return the content of status.json. If it is damaged, return a default: training must not end for that."""
    try:
        return read_json(folder.status)
    except RunError:
        return {"state": RUNNING, **asdict(this_process())}


def own_job_id() -> str | None:
    """Return the Slurm id of this process's job, `123` or, in an array, `123_4`; None outside Slurm."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")


@cache
def _status() -> TypeAdapter[Status]:
    return TypeAdapter(Status)


def _may_live(status: Status) -> bool:
    if status.pid is None or status.host is None:
        return False
    return ProcessIdentity(status.pid, status.host, status.start_ticks, status.boot).is_alive() is not False
