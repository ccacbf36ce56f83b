"""Says of a process that is gone which reward it was running: a file a rank, written while the process lives.

A crash in C, or the kernel's killer when memory runs out, leaves nobody to tell. So the names are in a file that is
mapped into memory: writing one costs no system call, and what was written outlives the process.
"""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_BYTES = 1024
_PATTERN = "running-reward-rank*"


@dataclass(frozen=True)
class Running:
    """A reward that runs on a rank. `began_at` is its clock's (time.monotonic), that of all processes of a machine."""

    name: str
    rank: int
    began_at: float


class RunningReward:
    """A record of the rewards that run on one rank at this moment; several may at once.

    `on_change` is called with the names of those that run when one begins or ends.
    """

    def __init__(self, folder: Path, rank: int, *, on_change: Callable[[list[str]], object] = bool) -> None:
        self._on_change = on_change
        self._file = folder / _PATTERN.replace("*", str(rank))
        self._file.write_bytes(bytes(_BYTES))
        with self._file.open("r+b") as stream:
            self._mapped = mmap.mmap(stream.fileno(), _BYTES)
        self._running: list[tuple[str, float]] = []
        self._lock = threading.Lock()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Open the context in which the reward `name` runs."""
        one = (name, time.monotonic())
        with self._lock:
            self._running.append(one)
            self._write()
        try:
            yield
        finally:
            with self._lock:
                self._running.remove(one)
                self._write()

    def close(self) -> None:
        """Remove the file: whatever ends this process from now on, no reward does. A second call does nothing."""
        if not self._mapped.closed:
            self._mapped.close()
        self._file.unlink(missing_ok=True)

    def _write(self) -> None:
        self._on_change([name for name, _ in self._running])
        if self._mapped.closed:
            return  # a thread that is left behind; nobody looks any more
        lines = "".join(f"{began_at:.1f} {name}\n" for name, began_at in self._running)
        self._mapped[:] = lines.encode()[:_BYTES].ljust(_BYTES, b"\0")


def markers(folder: Path) -> list[Path]:
    """Return the files of all ranks that live, or ended without a last word."""
    return sorted(folder.glob(_PATTERN))


def rewards_at_the_end(folder: Path) -> dict[int, str]:
    """Return a map of rank -> the rewards that its process was running when it vanished; without those running none."""
    found: dict[int, list[str]] = {}
    for one in running_rewards(folder):
        found.setdefault(one.rank, []).append(one.name)
    return {rank: ", ".join(names) for rank, names in found.items()}


def running_rewards(folder: Path) -> list[Running]:
    """Return what runs at this moment, or ran when its process vanished: of every rank the first that began first."""
    found = []
    for file in markers(folder):
        rank = int(file.name.removeprefix(_PATTERN[:-1]))
        try:
            lines = file.read_bytes().rstrip(b"\0").decode(errors="replace").splitlines()
        except OSError:
            continue  # it has just ended
        for line in lines:
            began_at, _, name = line.partition(" ")
            found.append(Running(name, rank, float(began_at)))
    return found


def while_running(folder: Path, besides: Collection[int] = ()) -> str:
    """Return what a reader of a run's status is told, such as `, while reward 'x' ran on rank 0`; '' where none ran.

    `besides` are ranks that have said themselves why they ended.
    """
    found = {rank: names for rank, names in rewards_at_the_end(folder).items() if rank not in besides}
    return "".join(f", while reward {names!r} ran on rank {rank}" for rank, names in found.items())
