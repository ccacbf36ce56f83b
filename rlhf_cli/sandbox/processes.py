"""Watches the processes below the sandbox's launcher while the program runs, and ends them when it is over.

The launcher is their reaper (PR_SET_CHILD_SUBREAPER, or process 1 of a namespace), so none gets away by losing its
parent. Used by `launcher.py` alone; standard library only.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time

TICK_S = 0.02


class Brood:
    """All descendants of this process, which are watched and ended together."""

    def __init__(self) -> None:
        self._ended: dict[int, int] = {}

    def watch(self, program: int, *, until: float, memory_bytes: int, max_processes: int) -> str | None:
        """Wait for `program` to end and return None, or return the reason to end it: `time`, `memory`, `processes`, or
        `launcher` where this process is told to end, as it is when nobody waits for the answer any more.

        `until` is on the clock of time.monotonic, in seconds; memory and processes count for all of them together.
        Wants SIGCHLD and SIGTERM blocked: they are waited for here.
        """
        while True:
            self.reap()
            if program in self._ended:
                return None
            left = until - time.monotonic()
            if left <= 0:
                return "time"
            living = descendants()
            if len(living) > max_processes:
                return "processes"
            if sum(_resident_bytes(pid) for pid in living) > memory_bytes:
                return "memory"
            news = signal.sigtimedwait([signal.SIGCHLD, signal.SIGTERM], min(left, TICK_S))
            if news is not None and news.si_signo == signal.SIGTERM:
                return "launcher"

    def status(self, pid: int) -> int:
        """Return how `pid` ended, as waitpid says it; SIGKILL where it was not seen to end."""
        return self._ended.get(pid, signal.SIGKILL)

    def reap(self) -> bool:
        """Collect what has ended; return False when there is no child left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                self._ended[pid] = status
        except ChildProcessError:
            return False

    def end(self) -> None:
        """Stop, then kill every descendant, until there is none. Raises RuntimeError when some will not die."""
        until = time.monotonic() + 5
        while self.reap():
            # All are stopped before one is killed: a fork bomb fills the place of each that is killed.
            stopped: set[int] = set()
            while new := set(descendants()) - stopped:
                _signal(new, signal.SIGSTOP)
                stopped |= new
            _signal(stopped, signal.SIGKILL)
            if time.monotonic() > until:
                raise RuntimeError(f"processes that will not die: {sorted(stopped)}")
            time.sleep(0.001)


def descendants() -> list[int]:
    """Return the ids of all living processes below this one."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                if state not in (b"Z", b"X"):
                    children.setdefault(int(parent), []).append(int(name))
    living: list[int] = []
    todo = [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        living += below
        todo += below
    return living


def _signal(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return 0
