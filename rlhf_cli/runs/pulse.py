"""Says what each rank of a run is doing, and when it last got on: a file a rank, written while the process lives.

Whoever asks is another process, a thread of the same one, or comes when the process is gone. So it is a file that is
mapped into memory, as that of the rewards is (running_reward.py): a sign of life costs no system call.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.runs.process_identity import boot_id

LOADING, TRAINING, ENDING = "loading data and models", "training", "ending"
GENERATION, REWARDS, ROLLOUT = "generation", "rewards", "log-probabilities and advantages of a rollout"
LOSS, OPTIMIZER = "loss and gradient", "optimizer step"
EVALUATION, SAVING = "evaluation", "saving"
DATA, FORWARD, CHECKS, CLIPPING = "data", "forward pass", "checks of numbers", "gradient clipping"
LOGGING = "logging"
OLD_LOGPS, REFERENCE_LOGPS = "old log-probabilities", "reference log-probabilities"
VALUES, CRITIC = "values", "update of the critic"
PARTS = frozenset({DATA, FORWARD, CHECKS, CLIPPING, LOGGING, OLD_LOGPS, REFERENCE_LOGPS, VALUES, CRITIC})
"""Parts of the phases above: they are timed (phase_clock.py), and who is told of a phase is told of the whole."""

_BYTES = 512
_PATTERN = "pulse-rank*"
_LAYOUT = struct.Struct("=dqq??36s")


@dataclass(frozen=True)
class Beat:
    """What a rank last said. `at` is its clock's (time.monotonic), which all processes of one machine share.

    `seams` counts the places it has passed that every rank passes: of two ranks of which one waits for the other, the
    one waited for has passed fewer. `is_watched` says that it should get on. `waits` is what a rank says of itself that
    has not for too long: all it does is wait for others.
    """

    rank: int
    pid: int
    at: float
    seams: int
    is_watched: bool
    waits: bool
    phase: str

    @property
    def age_s(self) -> float:
        """Return how long it has not been getting on, in seconds."""
        return time.monotonic() - self.at


class Pulse:
    """What this rank is doing. Every change, and every call of `beat`, is a sign of life."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._file = folder / _PATTERN.replace("*", str(rank))
        self._file.write_bytes(bytes(_BYTES))
        with self._file.open("r+b") as stream:
            self._mapped = mmap.mmap(stream.fileno(), _BYTES)
        self._boot = (boot_id() or "").encode()
        self._seams = 0
        self._is_watched = self._waits = False
        self.rank = rank
        self.phases: tuple[str, ...] = (LOADING,)
        """What it is doing, the innermost last. Where an error is raised this stays, and says during what."""
        self.on_watched: Callable[[], object] = bool
        """Called whenever it begins to be watched, by whoever watches."""
        self.listeners: list[Callable[[tuple[str, ...]], object]] = []
        """Called with what is being done from now on, whenever that changes."""
        self._write()

    def beat(self) -> None:
        """Say that this rank is getting on."""
        if not self._mapped.closed:
            struct.pack_into("=d", self._mapped, 0, time.monotonic())

    def enter(self, *phases: str, is_watched: bool = True) -> None:
        """Say what is being done from now on; a seam that every rank passes."""
        begins = is_watched and not self._is_watched
        self.phases, self._is_watched, self._waits = phases, is_watched, False
        self._seams += 1
        for listen in self.listeners:
            listen(phases)
        self._write()
        if begins:
            self.on_watched()

    def during(self, phase: str, *, is_watched: bool = True) -> AbstractContextManager[None]:
        """Open a context in which this is being done, within whatever else is. An error leaves it as it is."""
        return _Part(self, phase) if phase in PARTS else self._during(phase, is_watched=is_watched)

    @contextlib.contextmanager
    def _during(self, phase: str, *, is_watched: bool) -> Iterator[None]:
        before, was_watched = self.phases, self._is_watched
        self.enter(*before, phase, is_watched=is_watched and was_watched)
        yield
        self.enter(*before, is_watched=was_watched)

    def enter_part(self, phases: tuple[str, ...]) -> None:
        """Go on with these phases, of which the whole ones are those of before: nobody but listeners is told."""
        self.phases = phases
        for listen in self.listeners:
            listen(phases)

    def say_waits(self) -> None:
        """Say that all this rank does is wait for others; no sign of life."""
        self._waits = True
        self._write(is_beat=False)

    def read(self) -> Beat:
        """Return what this rank has said last."""
        found = _read(self._file)
        assert found is not None, "it is ours"
        return found[0]

    def close(self) -> None:
        """Remove the file: the process ends as it wants to. A second call does nothing."""
        if not self._mapped.closed:
            self._mapped.close()
        self._file.unlink(missing_ok=True)

    def _write(self, *, is_beat: bool = True) -> None:
        if self._mapped.closed:
            return
        (at,) = struct.unpack_from("=d", self._mapped, 0)
        values = (time.monotonic() if is_beat else at, os.getpid(), self._seams, self._is_watched, self._waits)
        phase = in_words(self.phases).encode()
        content = _LAYOUT.pack(*values, self._boot) + phase
        self._mapped[:] = content[:_BYTES].ljust(_BYTES, b"\0")


class _Part:
    """A context in which a part of a phase is being done: of the many in a step, each is to cost next to nothing."""

    __slots__ = ("_before", "_phase", "_pulse")

    def __init__(self, pulse: Pulse, phase: str) -> None:
        self._pulse, self._phase = pulse, phase

    def __enter__(self) -> None:
        self._before = self._pulse.phases
        self._pulse.enter_part((*self._before, self._phase))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._pulse.enter_part(self._before)


def during(pulse: Pulse | None, phase: str) -> AbstractContextManager[None]:
    """Open a context in which `phase` is being done, as far as there is a pulse to tell."""
    return contextlib.nullcontext() if pulse is None else pulse.during(phase)


def whole_phases(phases: Iterable[str]) -> tuple[str, ...]:
    """Return the phases without those that are parts of others."""
    return tuple(phase for phase in phases if phase not in PARTS)


def in_words(phases: tuple[str, ...]) -> str:
    """Return what is being done, the innermost whole phase alone; of an evaluation that is said as well."""
    phases = whole_phases(phases)
    innermost = phases[-1] if phases else ""
    return f"{innermost} of an evaluation" if EVALUATION in phases[:-1] else innermost


def pulses(folder: Path) -> dict[int, Beat]:
    """Return rank -> what it said last, for every rank of this machine whose process lives or vanished."""
    boot = boot_id() or ""
    found = filter(None, map(_read, pulse_files(folder)))
    return {beat.rank: beat for beat, of_boot in found if of_boot == boot}


def pulse_files(folder: Path) -> list[Path]:
    """Return the files of all ranks that live, or ended without a last word."""
    return sorted(folder.glob(_PATTERN))


def _read(file: Path) -> tuple[Beat, str] | None:
    try:
        content = file.read_bytes()
        at, pid, seams, is_watched, waits, boot = _LAYOUT.unpack_from(content)
    except (OSError, struct.error):
        return None  # it has just ended, or just begun
    phase = content[_LAYOUT.size :].rstrip(b"\0").decode(errors="replace")
    rank = int(file.name.removeprefix(_PATTERN[:-1]))
    return Beat(rank, pid, at, seams, is_watched, waits, phase), boot.rstrip(b"\0").decode(errors="replace")
