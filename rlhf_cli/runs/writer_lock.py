"""Let only one process at a time write into a run folder, with a lock and a record of its holder.

The lock is the operating system's (flock), so a killed process leaves none behind. The record tells other processes who
holds the lock, and later readers whether that process may still live. Not every network file system shares locks
between machines, so a folder last written from another machine may still be in use.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass

from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from rlhf_cli.errors import RunError
from rlhf_cli.process import ProcessIdentity, boot_id, this_process
from rlhf_cli.runs.run_folder import RunFolder, read_json, write_json
from rlhf_cli.runs.run_status import KILLED, RUNNING, WRITER_LOCK, Status, own_job_id, read_status

_RECORD = ".writer.json"
_READERS_S = 0.3  # seconds to wait for the lock: a reader that corrects the status of a killed run holds it briefly


@dataclass(frozen=True)
class Writer:
    """The process that writes into a run folder, since when (seconds since the epoch), and its Slurm job or None."""

    process: ProcessIdentity
    since: float
    slurm_job: str | None = None

    def describe(self) -> str:
        """Return the process and its start time in one line."""
        process = f"process {self.process.pid} on {self.process.host}"
        return f"{process}, since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(self.since))}"


@contextmanager
def only_writer(folder: RunFolder, *, take_over: bool = False, what: str = "run") -> Iterator[str | None]:
    """Lock an existing run folder (or `what`) inside the `with` block; yield a line if it was taken over, else None.

    Raise RunError if another process holds the folder, if one on another machine may (`take_over` asserts that it does
    not), or if it cannot be written to.
    """
    lock = FileLock(folder.path / WRITER_LOCK)
    try:
        try:
            lock.acquire(timeout=_READERS_S)
            taken_over = previous_writer(folder, take_over=take_over, what=what)
            write_json(folder.path / _RECORD, asdict(Writer(this_process(), time.time(), own_job_id())))
        except Timeout:
            raise _busy(folder, read_writer(folder), what) from None
        except OSError as error:
            problem, got = "the run folder cannot be written to", error.strerror or str(error)
            expected = "a folder in which a run can write its checkpoints and metrics"
            advice, where = f"cp -r {folder.typed} SOMEWHERE_ELSE, and resume that", str(folder.path)
            raise RunError(problem, where=where, got=got, expected=expected, advice=advice) from error
        yield taken_over
    finally:
        if lock.is_locked:
            writer = read_writer(folder)
            if writer is not None and writer.process == this_process():
                (folder.path / _RECORD).unlink(missing_ok=True)  # one that remains means its process was killed
            lock.release()


def read_writer(folder: RunFolder) -> Writer | None:
    """Return the recorded writer of the folder, or None if there is none or it cannot be read."""
    with suppress(RunError, ValidationError):
        return TypeAdapter(Writer).validate_python(read_json(folder.path / _RECORD))
    return None


def forget_writer(folder: RunFolder, status: Status) -> None:
    """Forget the writer of a run or a sweep whose Slurm job has ended; `status` is recorded if it is a killed run's.

    Do nothing if another process has taken the folder since.
    """
    with suppress(OSError, Timeout, RunError), FileLock(folder.path / WRITER_LOCK, timeout=0):
        if read_status(folder).updated_at == status.updated_at:
            if status.state == KILLED and status.process is not None:
                write_json(folder.status, asdict(status))
            (folder.path / _RECORD).unlink()


def previous_writer(folder: RunFolder, *, take_over: bool, what: str = "run") -> str | None:
    """Return a line about the previous writer, or None if there was none. Raise RunError if it may still write.

    Holding the lock proves that no process of this kernel has it. This checks for a writer on another machine, and for
    a rank that outlived the process that held the lock.
    """
    said, status, trainer = None, read_status(folder), None
    if status.state == RUNNING and status.process is not None:
        trainer = Writer(status.process, status.updated_at)
    for before in (read_writer(folder), trainer):
        if before is None or before.process == this_process():
            continue
        alive = before.process.is_alive()
        if alive:
            raise _busy(folder, before, what)
        job = own_job_id()
        is_same_job = job is not None and job == before.slurm_job  # Slurm requeues a job only after all of it has ended
        is_same_boot = before.process.boot is not None and before.process.boot == boot_id()  # of another container
        if alive is None and not (take_over or is_same_job or is_same_boot):
            problem = f"the {what} was last written to from another machine, and may still be running there"
            expected = f"a {what} without another writer: look on {before.process.host}"
            advice, got = "--take-over, if that process is gone", before.describe()
            raise RunError(problem, where=str(folder.path), got=got, expected=expected, advice=advice)
        said = said or f"taken over from {before.describe()}, which ended without a final status"
    return said


def _busy(folder: RunFolder, writer: Writer | None, what: str) -> RunError:
    got = "an unknown process" if writer is None else writer.describe()
    if writer is not None and writer.process.is_alive() is False:
        got += "; it has ended, but a process that it started still lives"
    problem, hint = f"the {what} is being trained right now", f"rlhf status {folder.typed}"
    expected = "one writer at a time: wait for it, or stop it"
    return RunError(problem, where=str(folder.path), got=got, expected=expected, hint=hint)
