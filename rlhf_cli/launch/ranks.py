"""Runs the ranks of this machine: starts a process each, hands signals on, and sees which ended first, and how.

`accelerate launch` and torchrun are not used for it. They give ranks 30 s from a signal to its kill, which is too short
to save in, leave orphans when they are killed themselves, do not say which signal ended a rank, and import torch. What
they set up is a handful of variables, which accelerate reads in every rank as it does theirs.
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
"""The variable that tells a rank which process has started it."""

_LOOK_EVERY_S = 0.1
_LAST_WORDS_S = 3.0
"""So long after a rank failed the others may say what they saw of it; what hangs in a collective never will."""
_ONE_WISH_S = 2.0
"""A signal that comes so soon after the same was handed on from another machine is the same wish."""
_SAVING_S = 10.0
"""So much longer than the grace the ranks may take to leave, before they are killed."""


@dataclass(frozen=True)
class Ended:
    """How a rank ended: its exit code, or the negative number of the signal that killed it; `at` is when it was last
    seen alive, in seconds since the epoch.
    """

    rank: int
    code: int
    at: float


@dataclass
class Ranks:
    """The ranks while they run. `ended` are those that have, in their order; ranks that were killed here are not among
    them. `asked` is how often somebody wanted them to stop, `asked_by` the signal.
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
        """Return how the ranks ended, the first first. `look` is called again and again meanwhile.

        Where one fails, the others have a moment for what they have to say; where they were asked to stop, their grace.
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
        """Ask every rank to stop; asked twice, they have but a moment. `by` is who asked, on another machine."""
        if by is not None:
            self._handed_on_at = time.monotonic()
        elif number != signal.SIGINT and time.monotonic() < self._handed_on_at + _ONE_WISH_S:
            return
        self.asked += 1
        self.asked_by = by or (CTRL_C if number == signal.SIGINT else signal.Signals(number).name)
        if self.asked == 1:
            say_heard(self.asked_by)  # what the ranks print to stderr goes to the log
        self._kill_within(self.grace_s + _SAVING_S if self.asked == 1 else _LAST_WORDS_S)
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                # SIGINT becomes SIGTERM: with a handler of its own it would be taken for a key pressed there.
                process.send_signal(signal.SIGTERM if number == signal.SIGINT else number)

    def leave(self, *, is_failure: bool) -> None:
        """Let the ranks end because one elsewhere has: it failed, or it was stopped and these are about to."""
        # All that were stopped have saved, they agree on a step. The first of them may have to upload what it logged.
        saving_s = _SAVING_S + (self.grace_s if 0 in self.processes else 0.0)
        self._kill_within(_LAST_WORDS_S if is_failure else saving_s)

    def kill(self) -> None:
        """End those that are left, and what they have started, now."""
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
    """Open a context in which the ranks run; on leaving it none of them does any more.

    Each is in a session of its own, so that Ctrl-C at the terminal reaches this process alone, which hands it on.
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
