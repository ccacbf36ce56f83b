"""Record which rewards each rank is running, in a memory-mapped file that outlives a killed process."""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_BYTES = 1024
_PATTERN = "running-reward-rank*"


@dataclass(frozen=True)
class Running:
    """A reward that runs on a rank. `began_at` is time.monotonic, which all processes of a machine share."""

    name: str
    rank: int
    began_at: float


class RunningReward:
    """A record of the rewards currently running on one rank; several may run at once.

    `on_change` is called with the names of the running rewards whenever one starts or ends.
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
        """Remove the file: from now on no reward can end this process. A second call does nothing."""
        if not self._mapped.closed:
            self._mapped.close()
        self._file.unlink(missing_ok=True)

    def _write(self) -> None:
        self._on_change([name for name, _ in self._running])
        if self._mapped.closed:
            return  # an abandoned thread; the file is no longer read
        lines = "".join(f"{began_at:.1f} {name}\n" for name, began_at in self._running)
        self._mapped[:] = lines.encode()[:_BYTES].ljust(_BYTES, b"\0")


def markers(folder: Path) -> list[Path]:
    """Return the files of all ranks that are alive or were killed."""
    return sorted(folder.glob(_PATTERN))


def rewards_at_the_end(folder: Path) -> dict[int, str]:
    """Return rank -> the rewards its process was running when it was killed; only ranks that ran any."""
    names: dict[int, list[str]] = {}
    for one in running_rewards(folder):
        names.setdefault(one.rank, []).append(one.name)
    return {rank: ", ".join(of_rank) for rank, of_rank in names.items()}


def running_rewards(folder: Path) -> list[Running]:
    """Return the rewards running now, or when their process was killed: per rank, earliest first."""
    found = []
    for file in markers(folder):
        rank = int(file.name.removeprefix(_PATTERN[:-1]))
        try:
            lines = file.read_bytes().rstrip(b"\0").decode(errors="replace").splitlines()
        except OSError:
            continue  # the process has just ended
        for line in lines:
            began_at, _, name = line.partition(" ")
            found.append(Running(name, rank, float(began_at)))
    return found


def while_running(folder: Path) -> str:
    """Return a status suffix such as `, while reward 'x' ran on rank 0`, or ''."""
    names = rewards_at_the_end(folder)
    return "".join(f", while reward {name!r} ran on rank {rank}" for rank, name in names.items())
