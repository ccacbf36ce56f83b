"""Run the ranks of this machine: start one process each, forward signals, and record how each ended, in order.

This does not use `accelerate launch` or torchrun. They kill ranks 30 s after a signal, which is too short for saving,
leave orphans when they are killed themselves, do not report which signal ended a rank, and import torch. All they set
up is a handful of environment variables, which accelerate reads in every rank in the same way.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import IO

from rlhf_cli.errors import CTRL_C, EXIT_PREEMPTED
from rlhf_cli.launch.stopping import handled, say_heard
from rlhf_cli.plan.launch_plan import RankPlan

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
