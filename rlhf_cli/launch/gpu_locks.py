"""Keep two runs from training on the same GPU by accident, with one lock per GPU of this machine.

The locks are the operating system's (flock), on files in a folder that only this user can write. They work across
separate commands and end with the process that holds them, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from rlhf_cli.errors import RunError
from rlhf_cli.plan.devices import gpu_identity, visible_gpus
from rlhf_cli.plan.launch_plan import LaunchPlan
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.text.regular_files import read_regular
from rlhf_cli.user_files import cache_folder

_SHARE = "RLHF_SHARE_GPUS"
_FOLDER = "RLHF_GPU_LOCKS"
_UNSAFE = re.compile(r"[^A-Za-z0-9-]+")


@dataclass(frozen=True)
class HeldGpus:
    """GPUs that this process holds until `release`. `gpus` are named as in CUDA_VISIBLE_DEVICES."""

    gpus: tuple[str, ...]
    locks: Sequence[FileLock]

    def release(self) -> None:
        """Release the locks and remove the records of who holds them."""
        for lock in self.locks:
            with contextlib.suppress(OSError):
                Path(lock.lock_file).with_suffix(".txt").unlink(missing_ok=True)
            lock.release()


def gpus_of(plan: LaunchPlan) -> tuple[str, ...]:
    """Return all GPUs of a run on this machine: for training and for its vLLM server."""
    return (*plan.gpus, *(plan.server.gpus if plan.server is not None else ()))


def take(gpus: Sequence[str], run: str) -> HeldGpus | None:
    """Lock these GPUs for a run, or return None if another run has one. Shared GPUs are not locked."""
    if os.environ.get(_SHARE) == "1":
        return HeldGpus(tuple(gpus), ())
    held: list[FileLock] = []
    for gpu in gpus:
        lock = FileLock(_lock_file(gpu))
        try:
            lock.acquire(timeout=0)
            held.append(lock)
            record = Path(lock.lock_file).with_suffix(".txt")
            record.unlink(missing_ok=True)  # writing through a link would overwrite another file
            with open(os.open(record, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
                stream.write(f"process {os.getpid()}, {run}")
        except (Timeout, OSError) as error:
            HeldGpus((), held).release()
            if isinstance(error, Timeout):
                return None
            raise _unusable(str(error), Path(lock.lock_file)) from error  # a link, another user's file, a full disk
    return HeldGpus(tuple(gpus), held)


def take_free(count: int, run: str) -> HeldGpus | None:
    """Lock `count` free GPUs of those visible to this process, or return None if there are fewer."""
    found: list[HeldGpus] = []
    for gpu in visible_gpus():
        if (held := take([gpu], run)) is not None:
            found.append(held)
        if len(found) == count:
            return HeldGpus(tuple(held.gpus[0] for held in found), [lock for held in found for lock in held.locks])
    for held in found:
        held.release()
    return None


@contextmanager
def gpus_held(plan: LaunchPlan, folder: RunFolder) -> Iterator[None]:
    """Hold the GPUs of a run inside the `with` block. Raise RunError if another run has one of them."""
    gpus = gpus_of(plan)
    held = take(gpus, folder.shown)
    if held is None:
        what = "another run trains on the GPU" if len(gpus) == 1 else "another run trains on one of the GPUs"
        got, expected = "\n".join(holders_of(gpus)), "each run has its own GPU"
        advice = f"CUDA_VISIBLE_DEVICES=ANOTHER rlhf ..., or wait for it; {_SHARE}=1 lets two runs share it"
        raise RunError(what, where=f"GPU {', '.join(gpus)}", got=got, expected=expected, advice=advice)
    try:
        yield
    finally:
        held.release()


def holders_of(gpus: Sequence[str]) -> list[str]:
    """Return lines such as `GPU 0: process 4711, runs/quickstart/one` for the GPUs that are held."""
    found = []
    for gpu in gpus:
        with contextlib.suppress(OSError, ValueError):
            found.append(f"GPU {gpu}: {read_regular(_lock_file(gpu).with_suffix('.txt'), 1000)}")
    return found


def _lock_file(gpu: str) -> Path:
    return _folder() / f"{_UNSAFE.sub('-', gpu_identity(gpu))}.lock"


def _folder() -> Path:
    """Return the folder of the locks, creating it: in /tmp, or in the cache folder if another user can write that."""
    named, user = os.environ.get(_FOLDER), os.getuid()
    usual = (Path(tempfile.gettempdir()) / f"rlhf-gpus-{user}", cache_folder("gpus") / f"{user}-{socket.gethostname()}")
    for folder in [Path(named)] if named else usual:
        got = "another user owns it or can write to it"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = folder.lstat()  # a link is no folder
            if named or (stat.S_ISDIR(found.st_mode) and found.st_uid == user and not found.st_mode & 0o022):
                return folder
        except OSError as error:
            got = str(error)
    raise _unusable(got, folder)


def _unusable(got: str, place: Path) -> RunError:
    expected, hint = "a folder of your own, with room", f"export {_FOLDER}=~/rlhf-gpus"
    return RunError("the GPUs cannot be locked", where=str(place), got=got, expected=expected, hint=hint)
