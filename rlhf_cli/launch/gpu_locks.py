"""Keep two runs from training on the same GPU by accident, with one lock per GPU of this machine.

The locks are the operating system's (flock), on files in a local folder of this user. They work across separate
commands and end with the process that holds them, however it ends.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from rlhf_cli.errors import Prose, RunError
from rlhf_cli.plan.devices import gpu_identity
from rlhf_cli.plan.launch_plan import LaunchPlan
from rlhf_cli.runs.run_folder import read_json, write_json
from rlhf_cli.runs.run_status import this_process

_SHARE = "RLHF_SHARE_GPUS"
_FOLDER = "RLHF_GPU_LOCKS"
_UNSAFE = re.compile(r"[^A-Za-z0-9-]+")


@dataclass(frozen=True)
class Holder:
    """The process that trains on a GPU, its run, and since when (seconds since the epoch)."""

    pid: int
    run: str
    since: float

    def describe(self) -> str:
        """Return the holder in one line."""
        return f"process {self.pid}, {self.run}, since {time.strftime('%H:%M:%S', time.localtime(self.since))}"


class HeldGpus:
    """GPUs that this process holds until `release`. `gpus` are named as in CUDA_VISIBLE_DEVICES."""

    def __init__(self, gpus: tuple[str, ...], locks: Sequence[FileLock]) -> None:
        self.gpus = gpus
        self.locks = locks

    def release(self) -> None:
        """Release the locks and remove their records."""
        for lock in self.locks:
            with contextlib.suppress(OSError):
                _record(Path(lock.lock_file)).unlink(missing_ok=True)
            lock.release()


def gpus_of(plan: LaunchPlan) -> tuple[str, ...]:
    """Return all GPUs of a run on this machine: for training and for its vLLM server."""
    return (*plan.gpus, *(plan.server.gpus if plan.server is not None else ()))


def take(gpus: Sequence[str], run: str) -> HeldGpus | None:
    """Lock these GPUs for a run, or return None if another run has one. With shared GPUs, nothing is locked."""
    if os.environ.get(_SHARE) == "1":
        return HeldGpus(tuple(gpus), ())
    held: list[FileLock] = []
    for gpu in gpus:
        lock = FileLock(lock_file(gpu))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            HeldGpus((), held).release()
            return None
        held.append(lock)
        write_json(_record(Path(lock.lock_file)), {**asdict(this_process()), "run": run, "since": time.time()})
    return HeldGpus(tuple(gpus), held)


@contextmanager
def holding(gpus: Sequence[str], run: str) -> Iterator[None]:
    """Hold these GPUs inside the `with` block. Raises RunError if another run has one of them."""
    held = take(gpus, run)
    if held is None:
        busy = {gpu: holder for gpu in gpus if (holder := holder_of(gpu)) is not None}
        raise RunError(
            "another run trains on the GPU" if len(gpus) == 1 else "another run trains on one of the GPUs",
            where=f"GPU {', '.join(gpus)}",
            got="\n".join(f"GPU {gpu}: {holder.describe()}" for gpu, holder in busy.items()) or "one that says no name",
            expected="a GPU of its own for every run",
            hint=Prose(f"CUDA_VISIBLE_DEVICES=ANOTHER rlhf ..., or wait for it; {_SHARE}=1 where two are to share it"),
        )
    try:
        yield
    finally:
        held.release()


def holder_of(gpu: str) -> Holder | None:
    """Return the recorded holder of a GPU, or None."""
    try:
        said = read_json(_record(lock_file(gpu)))
        return Holder(int(str(said["pid"])), str(said["run"]), float(str(said["since"])))
    except (RunError, KeyError, ValueError):
        return None


def lock_file(gpu: str) -> Path:
    """Return the lock file of a GPU, creating its folder."""
    named = os.environ.get(_FOLDER)
    folder = Path(named) if named else Path(tempfile.gettempdir()) / f"rlhf-gpus-{_user()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder / f"{_UNSAFE.sub('-', gpu_identity(gpu))}.lock"


def _record(lock: Path) -> Path:
    return lock.with_suffix(".json")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return str(os.getuid())
