"""Record what each rank is doing, which rewards it runs and when it last made progress, and clock its phases.

The record is a memory-mapped file: writing costs no system call, and another process can read it after a kill. At each
change of phase, the clock charges all seconds since the last change to the previous phase.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.process import boot_id
from rlhf_cli.tables.metrics import ELAPSED, OF_REWARD, PHASES, REST, SHARE, WAITING
from rlhf_cli.text.regular_files import open_regular

LOADING, TRAINING, ENDING = "loading data and models", "training", "ending"
GENERATION, REWARDS, ROLLOUT = "generation", "rewards", "log-probabilities and advantages of a rollout"
LOSS, OPTIMIZER = "loss and gradient", "optimizer step"
EVALUATION, SAVING = "evaluation", "saving"
DATA, FORWARD, CHECKS, CLIPPING = "data", "forward pass", "checks of numbers", "gradient clipping"
LOGGING = "logging"
OLD_LOGPS, REFERENCE_LOGPS = "old log-probabilities", "reference log-probabilities"
VALUES, CRITIC = "values", "update of the critic"
PARTS = frozenset({DATA, FORWARD, CHECKS, CLIPPING, LOGGING, OLD_LOGPS, REFERENCE_LOGPS, VALUES, CRITIC})
"""Parts of the phases above. They are timed, but a displayed phase is always the whole one."""

_BYTES = 2048
_PATTERN = "heartbeat-rank*"
_LAYOUT = struct.Struct("=dqq??36s")  # lines follow: the phase, then the names of the running rewards
REWARD = "reward/"  # prefix of the timing key of a reward
_SCORING = "scoring"
_KEYS = {  # phase -> key of PHASES in tables/metrics.py
    TRAINING: REST,
    DATA: "data",
    GENERATION: "generation",
    ROLLOUT: "rollout",
    REWARDS: _SCORING,
    OLD_LOGPS: "old_logps",
    REFERENCE_LOGPS: "reference_logps",
    VALUES: "values",
    FORWARD: "forward",
    LOSS: "backward",  # the backward phase excludes the forward pass and the checks
    CRITIC: "critic",
    CHECKS: "checks",
    CLIPPING: "optimizer",
    OPTIMIZER: "optimizer",
    LOGGING: "logging",
    SAVING: "saving",
    EVALUATION: EVALUATION,  # the same word
}
_ON_DEVICE = frozenset({"forward", "backward", "old_logps", "reference_logps", "values", "critic", "optimizer"})
"""Phases after which a GPU may still be working."""


@dataclass(frozen=True)
class Beat:
    """The last record of a rank."""

    rank: int
    pid: int
    at: float  # of time.monotonic, which all processes of one machine share
    seams: int  # synchronization points passed: the rank that others wait for has passed fewer
    is_watched: bool  # it should be making progress
    waits: bool  # it only waits for others
    phase: str
    rewards: tuple[str, ...] = ()  # that run now, or ran when the process was killed
    boot: str = ""

    @property
    def age_s(self) -> float:
        """Return the seconds since the rank last made progress."""
        return time.monotonic() - self.at


class Heartbeat:
    """What this rank is doing. Every change, and every call of `beat`, is a heartbeat."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._file = folder / _PATTERN.replace("*", str(rank))
        self._file.write_bytes(bytes(_BYTES))
        with self._file.open("r+b") as stream:
            self._mapped = mmap.mmap(stream.fileno(), _BYTES)
        self._boot = (boot_id() or "").encode()
        self._seams = 0
        self._is_watched = self._waits = False
        self.rank = rank
        self.phases: tuple[str, ...] = (LOADING,)  # innermost last; after an error they show where it was raised
        self.listeners: list[Callable[[tuple[str, ...]], object]] = []  # called with new phases
        self.reward_listeners: list[Callable[[list[str]], object]] = []  # called with the names of the running ones
        self.stopped_s = 0.0  # how long a signal or a paused container stopped the process, as far as known
        self._rewards: list[str] = []
        self._lock = threading.RLock()
        self._write()

    def working_s(self) -> float:
        """Return a clock in seconds that stands still while the process is stopped."""
        return time.monotonic() - self.stopped_s

    def beat(self) -> None:
        """Record that this rank is making progress."""
        if not self._mapped.closed:
            struct.pack_into("=d", self._mapped, 0, time.monotonic())

    def enter(self, *phases: str, is_watched: bool = True) -> None:
        """Set the current phases and count one synchronization point that every rank passes."""
        self._is_watched, self._waits = is_watched, False
        self._seams += 1
        self.enter_part(phases)
        self._write()

    @contextlib.contextmanager
    def during(self, phase: str, *, is_watched: bool = True) -> Iterator[None]:
        """Open a context with `phase` inside the current phases. After an error the phase stays set."""
        before, was_watched = self.phases, self._is_watched
        if phase in PARTS:
            self.enter_part((*before, phase))
            yield
            self.enter_part(before)
        else:
            self.enter(*before, phase, is_watched=is_watched and was_watched)
            yield
            self.enter(*before, is_watched=was_watched)

    def enter_part(self, phases: tuple[str, ...]) -> None:
        """Replace the phase list and notify listeners only; the file is not written, as whole phases do not change."""
        self.phases = phases
        for listen in self.listeners:
            listen(phases)

    @contextlib.contextmanager
    def running(self, reward: str) -> Iterator[None]:
        """Open the context in which a reward runs, in any thread; both ends are heartbeats."""
        self._change_rewards(self._rewards.append, reward)
        try:
            yield
        finally:
            self._change_rewards(self._rewards.remove, reward)

    def _change_rewards(self, change: Callable[[str], None], reward: str) -> None:
        with self._lock:
            change(reward)
            for listen in self.reward_listeners:
                listen(list(self._rewards))
            self._write()

    def say_waits(self) -> None:
        """Record that this rank only waits for others; this is not a heartbeat."""
        self._waits = True
        self._write(is_beat=False)

    def read(self) -> Beat:
        """Return the last record of this rank."""
        found = _read(self._file)
        assert found is not None, "it is ours"
        return found

    def close(self) -> None:
        """Remove the file, because the process ends normally. A second call does nothing."""
        if not self._mapped.closed:
            self._mapped.close()
        self._file.unlink(missing_ok=True)

    def _write(self, *, is_beat: bool = True) -> None:
        with self._lock:
            if self._mapped.closed:
                return
            (at,) = struct.unpack_from("=d", self._mapped, 0)
            values = (time.monotonic() if is_beat else at, os.getpid(), self._seams, self._is_watched, self._waits)
            content = _LAYOUT.pack(*values, self._boot) + "\n".join([in_words(self.phases), *self._rewards]).encode()
            self._mapped[:] = content[:_BYTES].ljust(_BYTES, b"\0")


def during(heartbeat: Heartbeat | None, phase: str, *, is_watched: bool = True) -> AbstractContextManager[None]:
    """Open a context with `phase` if there is a heartbeat, else one that does nothing."""
    return contextlib.nullcontext() if heartbeat is None else heartbeat.during(phase, is_watched=is_watched)


def in_words(phases: tuple[str, ...]) -> str:
    """Return the innermost whole phase; within an evaluation, mention that too."""
    phases = tuple(phase for phase in phases if phase not in PARTS)
    innermost = phases[-1] if phases else ""
    return f"{innermost} of an evaluation" if EVALUATION in phases[:-1] else innermost


def heartbeats(folder: Path) -> dict[int, Beat]:
    """Return rank -> last record, for every rank of this machine that is alive or was killed."""
    boot, found = boot_id() or "", filter(None, map(_read, heartbeat_files(folder)))
    return {beat.rank: beat for beat in found if beat.boot == boot}


def heartbeat_files(folder: Path) -> list[Path]:
    """Return the files of all ranks that are alive or were killed."""
    return sorted(folder.glob(_PATTERN))


def _read(file: Path) -> Beat | None:
    try:
        with open_regular(file) as stream:
            content = stream.read()
        at, pid, seams, is_watched, waits, boot = _LAYOUT.unpack_from(content)
        rank = int(file.name.removeprefix(_PATTERN[:-1]))
    except (OSError, ValueError, struct.error):
        return None  # the process has just ended or just started, or it is no file of ours
    phase, *rewards = content[_LAYOUT.size :].rstrip(b"\0").decode(errors="replace").split("\n")
    of_boot = boot.rstrip(b"\0").decode(errors="replace")
    return Beat(rank, pid, at, seams, is_watched, waits, phase, tuple(rewards), of_boot)


def while_running(folder: Path) -> str:
    """Return a status suffix such as `, while reward 'x' ran on rank 0`, for the ranks that were killed in a reward."""
    names = {rank: ", ".join(beat.rewards) for rank, beat in heartbeats(folder).items()}
    return "".join(f", while reward {name!r} ran on rank {rank}" for rank, name in names.items() if name)


class PhaseClock:
    """The seconds of one rank by phase since the last `taken`, in training only.

    `settle` waits for the device's pending work, which counts for the phase that queued it; None on a CPU.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.settle: Callable[[], object] | None = None
        self._now = now
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._key: str | None = None
        self._at = now()
        self._rewards: Sequence[str] = ()
        self._num_waits = 0

    def hear(self, phases: tuple[str, ...]) -> None:
        """Switch to these phases, innermost last; registered as a listener of a heartbeat."""
        if self.settle is not None and self._key in _ON_DEVICE:
            self.settle()
        self._charge()
        if not phases or phases[0] in (LOADING, ENDING):
            self._key = None
        else:
            self._key = EVALUATION if EVALUATION in phases else _KEYS.get(phases[-1], REST)

    def run_rewards(self, names: Sequence[str]) -> None:
        """Set which rewards are running, from any thread; rewards that run concurrently share the time equally."""
        if self._key == _SCORING:  # else a reward that had timed out has just ended
            self._charge()
        self._rewards = names

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Open a context in which this rank waits for others; during evaluation the time still counts as evaluation."""
        self._charge()
        self._num_waits += 1
        try:
            yield
        finally:
            self._charge()
            self._num_waits -= 1

    def taken(self) -> dict[str, float]:
        """Return key -> seconds since the last call; rewards have keys `reward/NAME`."""
        self._charge()
        taken, self._seconds = self._seconds, defaultdict(float)
        return taken

    def _charge(self) -> None:
        now, key = self._now(), self._key
        passed, self._at = now - self._at, now
        if key is None:
            return
        if self._num_waits and key != EVALUATION:
            self._seconds[WAITING] += passed
        elif self._rewards and key == _SCORING:
            for name in self._rewards:
                self._seconds[f"{REWARD}{name}"] += passed / len(self._rewards)
        else:
            self._seconds[key] += passed


class TimeSpent:
    """The timed seconds of a log, in all and by phase (`reward/NAME` for a reward); 0 for a phase that never ran.

    The last event, which ends the training, counts too: it has the time of the last saving.
    """

    def __init__(self) -> None:
        self.elapsed_s = 0.0
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def take(self, event: Mapping[str, object]) -> None:
        """Add a log event; one without its seconds, of a damaged log, adds nothing."""
        if not isinstance(elapsed_s := event.get(ELAPSED), int | float):
            return
        self.elapsed_s += elapsed_s
        for name, share in event.items():
            if name.startswith(SHARE) and isinstance(share, int | float):
                self.seconds[name.removeprefix(SHARE)] += share * elapsed_s

    def shares(self) -> dict[str, float]:
        """Return each phase's share, largest first; they add up to 1. {} if nothing was timed."""
        ordered = sorted(self.seconds.items(), key=lambda item: -item[1])
        return {key: seconds / self.elapsed_s for key, seconds in ordered} if self.elapsed_s > 0.0 else {}


def phase_label(key: str) -> str:
    """Return the display name of a phase."""
    reward = key.removeprefix(OF_REWARD.removeprefix(SHARE))
    return f"reward {reward}" if reward != key else PHASES.get(key, key)
