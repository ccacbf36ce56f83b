"""Run the ranks of this machine and say why they failed.

This does not use `accelerate launch` or torchrun. They kill ranks 30 s after a signal, which is too short for saving,
leave orphans when they are killed themselves, do not report which signal ended a rank, and import torch. All they set
up is a handful of environment variables, which accelerate reads in every rank in the same way.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter
from pathlib import Path
from types import FrameType
from typing import IO

from pydantic import TypeAdapter, ValidationError

from rlhf_cli.errors import CTRL_C, EXIT_CRASH, EXIT_PREEMPTED, RunError
from rlhf_cli.launch.stopping import handled, say_heard
from rlhf_cli.plan.launch_plan import RankPlan
from rlhf_cli.runs.heartbeat import heartbeats
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.runs.running_reward import rewards_at_the_end

PARENT = "RLHF_PARENT_PID"
"""The environment variable with the pid of the process that started a rank."""

_LOOK_EVERY_S = 0.1
_LAST_WORDS_S = 3.0
"""Seconds that other ranks have for reporting after one failed; a rank in a collective never reports."""
_ONE_WISH_S = 2.0
"""Seconds within which a repeat of a signal forwarded from another machine is ignored."""
_SAVING_S = 10.0
"""Seconds beyond the grace period before ranks are killed."""


@dataclass(frozen=True)
class Ended:
    """How a rank ended: its exit code, or the negative number of the signal that killed it.

    `at` is when it was last seen alive, in seconds since the epoch.
    """

    rank: int
    code: int
    at: float


@dataclass
class Ranks:
    """The running ranks.

    `ended` are the ranks that have ended, in order, except those killed by this process. `asked` counts the requests to
    stop, and `asked_by` is the signal of the last one.
    """

    processes: dict[int, subprocess.Popen[bytes]]
    grace_s: float
    ended: list[Ended] = field(default_factory=list)
    asked: int = 0
    asked_by: str | None = None
    _kill_at: float | None = None
    _handed_on_at: float = float("-inf")
    _looked_at: float = field(default_factory=time.time)

    def wait(self, look: Callable[[], object] = lambda: None) -> list[Ended]:
        """Return how the ranks ended, in order. `look` is called repeatedly meanwhile.

        If one fails, the others have a moment to report; after a request to stop, they have their grace period.
        """
        while self.processes:
            self._look()
            look()
            if self._kill_at is not None and time.monotonic() > self._kill_at:
                self.kill()
                break
            time.sleep(_LOOK_EVERY_S)
        return self.ended

    def ask(self, number: int = signal.SIGTERM, *, by: str | None = None) -> None:
        """Ask every rank to stop; a second request leaves them only a moment. `by` is who asked on another machine."""
        if by is not None:
            self._handed_on_at = time.monotonic()
        elif number != signal.SIGINT and time.monotonic() < self._handed_on_at + _ONE_WISH_S:
            return
        self.asked += 1
        self.asked_by = by or (CTRL_C if number == signal.SIGINT else signal.Signals(number).name)
        if self.asked == 1:
            say_heard(self.asked_by)  # the ranks' stderr goes to the log
        self._kill_within(self.grace_s + _SAVING_S if self.asked == 1 else _LAST_WORDS_S)
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                # Send SIGTERM for SIGINT: a rank would treat SIGINT as Ctrl-C at its own terminal.
                process.send_signal(signal.SIGTERM if number == signal.SIGINT else number)

    def leave(self, *, is_failure: bool) -> None:
        """Let the ranks end because one elsewhere has ended: it failed, or it was stopped as these will be."""
        # Stopped ranks have all saved, because they agree on a step. Rank 0 may still have to upload its logs.
        saving_s = _SAVING_S + (self.grace_s if 0 in self.processes else 0.0)
        self._kill_within(_LAST_WORDS_S if is_failure else saving_s)

    def kill(self) -> None:
        """Kill the remaining ranks and their child processes now."""
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self.processes.values():
            process.wait()
        self.processes.clear()

    def _look(self) -> None:
        alive_at, self._looked_at = self._looked_at, time.time()
        for rank, process in list(self.processes.items()):
            code = process.poll()
            if code is None:
                continue
            del self.processes[rank]
            self.ended.append(Ended(rank, code, alive_at))
            if code != 0:
                self.leave(is_failure=code != EXIT_PREEMPTED)

    def _kill_within(self, seconds: float) -> None:
        at = time.monotonic() + seconds
        self._kill_at = at if self._kill_at is None else min(at, self._kill_at)


@contextlib.contextmanager
def started(plans: Sequence[RankPlan], *, stderr: IO[str], grace_s: float) -> Iterator[Ranks]:
    """Open a context in which the ranks run; on exit all of them have ended.

    Each rank has its own session, so Ctrl-C reaches only this process, which forwards it.
    """
    ranks = Ranks({}, grace_s)

    def ask(number: int, _: FrameType | None) -> None:
        ranks.ask(number)

    asking = dict.fromkeys((signal.SIGTERM, signal.SIGUSR1, signal.SIGINT), ask)
    with handled(asking | {signal.SIGHUP: signal.SIG_IGN}):
        try:
            for plan in plans:
                environment = {**os.environ, **plan.env, PARENT: str(os.getpid())}
                ranks.processes[plan.rank] = subprocess.Popen(
                    plan.argv, env=environment, stderr=stderr, start_new_session=True
                )
            yield ranks
        finally:
            ranks.kill()


def free_ports(count: int) -> list[int]:
    """Return distinct free ports of this machine."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


_OF_SIGNALS = {
    signal.SIGKILL: "most likely out of memory: the kernel kills without a word (`dmesg | tail` says so)",
    signal.SIGSEGV: "it crashed in compiled code",
    signal.SIGBUS: "it crashed in compiled code, or a disk or /dev/shm is full",
    signal.SIGABRT: "a library gave up; log.txt holds its last words",
}


@dataclass(frozen=True)
class RankFailure:
    """Why one rank failed, as written to its failure file.

    `time` is in seconds since the epoch. `traceback` is empty if there is none. `host` is None if all ranks are on one
    machine.
    """

    rank: int
    time: float
    message: str
    traceback: str = ""
    exit_code: int = EXIT_CRASH
    is_by_guard: bool = False
    host: str | None = None


def first_failure(folder: RunFolder, ended: Sequence[Ended]) -> RankFailure | None:
    """Return the failure that caused the others, or None if no rank failed."""
    return min(failures(folder, ended), key=attrgetter("time"), default=None)


def failures(folder: RunFolder, ended: Sequence[Ended], *, log: Path | None = None) -> list[RankFailure]:
    """Return the recorded failures of all ranks, and how the ranks in `ended` without a record ended.

    `log` is the log of the latter, None for the run's own. A recorded failure counts from when it was raised, an
    unrecorded one from when the rank was last seen alive: other ranks notice its absence, and record that, before this
    process looks again.
    """
    told = {failure.rank: failure for failure in _told(folder)}
    silent = [
        RankFailure(one.rank, one.at, _how(one, folder, log or folder.log))
        for one in ended
        if one.code not in (0, EXIT_PREEMPTED) and one.rank not in told
    ]
    return [*told.values(), *silent]


def way_on(folder: RunFolder) -> str:
    """Return what remains of a failed run: its last checkpoint, how old it is, and the resume command."""
    checkpoint = folder.last_checkpoint()
    if checkpoint is None:
        return "no checkpoint was saved"
    age = _age(time.time() - checkpoint.stat().st_mtime)
    return f"last good checkpoint: {checkpoint.name}, {age} old; `rlhf resume {os.path.relpath(folder.path)}`"


def failure_file(folder: RunFolder, rank: int | str) -> Path:
    """Return the file in which a rank records why it failed; rank `*` gives the pattern for all."""
    return folder.path / f"failure-rank{rank}.json"


def _told(folder: RunFolder) -> list[RankFailure]:
    """Return the recorded failures, skipping records that a full disk cut off."""
    found = []
    for file in folder.path.glob(failure_file(folder, "*").name):
        with contextlib.suppress(RunError, ValidationError):
            found.append(_failure().validate_python(read_json(file)))
    return found


@cache
def _failure() -> TypeAdapter[RankFailure]:
    return TypeAdapter(RankFailure)


def _how(ended: Ended, folder: RunFolder, log: Path) -> str:
    reward = rewards_at_the_end(folder.path).get(ended.rank)
    beat = heartbeats(folder.path).get(ended.rank)
    during = f" while reward {reward!r} ran" if reward else f" during {beat.phase}" if beat else ""
    if ended.code >= 0:
        return f"ended with code {ended.code}{during} and did not say why; see {log}"
    number = -ended.code
    known = next((text for one, text in _OF_SIGNALS.items() if one == number), None)
    return f"was killed by signal {number} ({signal.Signals(number).name}){during}" + (f", {known}" if known else "")


def _age(seconds: float) -> str:
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
