"""Read and write status.json: what state a run is in, by its own last word and by whether its process still lives.

A process that crashes or is killed leaves `running` behind. Whoever reads that next writes `killed` into the file.
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
"""A scheduler has it, under `job_id`, and no process of it lives yet."""
KILLED = "killed"
"""A reader concludes this state from a status of `running` whose process is gone, and writes it down."""
WRITER_LOCK = ".writer.lock"
"""Whoever writes into a run folder holds a lock on this file (writer_lock.py)."""
_LAST_WORDS = (FINISHED, FAILED, PREEMPTED)


@dataclass(frozen=True)
class Status:
    """The state of one run, as status.json holds it.

    `step` and `max_steps` count optimizer steps; `reason` is why it ended before its last step, of a finished run the
    rule it was stopped by; `updated_at` is in seconds since the epoch; `job_id` is Slurm's name
    of the job, `123` or `123_4`. `pid`, `host`, `start_ticks` and `boot` say which process the main one is
    (process_identity.py). What is not known is None.
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
    """Return a state in words: what its user stopped is `stopped by Ctrl-C`, and no scheduler took its place."""
    return f"stopped by {CTRL_C}" if state == PREEMPTED and reason == CTRL_C else state


def stopped_by_rule(status: Status) -> str | None:
    """Return which rule of its own ended a run that is finished, and with what values; None where it went to its end.

    Such a run is done: its model is saved, and nothing is missing of it that was asked for.
    """
    return status.reason if status.state == FINISHED else None


def read_status(folder: RunFolder) -> Status:
    """Return the run's state. A `running` run whose process is dead on this machine is `killed`, and its file says so
    from then on.

    A process that has the pid of the dead one by now, and a machine that has booted since, deceive nobody. Raises
    RunError where status.json cannot be read.
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
    """Write down that a run was killed, with the time of its own last word.

    Does nothing if somebody works on the run, if its status is no longer `content`, or if the folder cannot be written.
    """
    from filelock import FileLock, Timeout

    with contextlib.suppress(OSError, Timeout, RunError), FileLock(folder.path / WRITER_LOCK, timeout=0):
        if read_json(folder.status) == content:
            write_json(folder.status, asdict(killed))


def name_who_asked(folder: RunFolder, asked_by: str) -> Status:
    """Record who asked a run to end, and return its status: a process that was handed SIGTERM knows of that alone."""
    status = read_status(folder)
    handed_on, reason = signal.SIGTERM.name, status.reason or ""
    if status.state != PREEMPTED or not reason.startswith(handed_on):
        return status
    return update_status(folder, reason=asked_by + reason.removeprefix(handed_on))


def update_status(folder: RunFolder, **changes: object) -> Status:
    """Merge `changes` into status.json, stamp them with the time and return the new state.

    The last word of a run is flushed to the disk: after a power cut nobody would start a finished run again.
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
    """Record that this very process now works on the run."""
    begins = {"reason": None, "failing_rank": None, "warnings": 0}
    update_status(folder, state=RUNNING, **asdict(this_process()), job_id=own_job_id(), **begins)


def _known(folder: RunFolder) -> JsonTree:
    """Return what status.json holds. One that somebody damaged while the run trains is no reason to end the run."""
    try:
        return read_json(folder.status)
    except RunError:
        return {"state": RUNNING, **asdict(this_process())}


def own_job_id() -> str | None:
    """Return Slurm's name of the job that this process belongs to, `123` or, in an array, `123_4`; None outside."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")


@cache
def _status() -> TypeAdapter[Status]:
    return TypeAdapter(Status)


def _may_live(status: Status) -> bool:
    if status.pid is None or status.host is None:
        return False
    return ProcessIdentity(status.pid, status.host, status.start_ticks, status.boot).is_alive() is not False
