"""Watch the processes below the sandbox's launcher while the program runs, and kill them at the end.

The launcher is their reaper (PR_SET_CHILD_SUBREAPER, or process 1 of a namespace), so none escapes by losing its
parent. Used only by `launcher.py`; imports only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time

TICK_S = 0.02


class Brood:
    """All descendants of this process, watched and ended together."""

    def __init__(self) -> None:
        self._ended: dict[int, int] = {}

    def watch(self, program: int, *, until: float, memory_bytes: int, max_processes: int) -> str | None:
        """Wait for `program` to end and return None, or return the reason to end it.

        The reasons are `time`, `memory`, `processes`, and `launcher` if this process receives SIGTERM, which means that
        the result is no longer wanted. `until` is in seconds of time.monotonic; memory and processes count all
        descendants together. The caller must block SIGCHLD and SIGTERM, because this function waits for them.
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
        """Return the wait status of `pid`, or SIGKILL if its end was not observed."""
        return self._ended.get(pid, signal.SIGKILL)

    def reap(self) -> bool:
        """Reap ended children; return False if there are no children left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                self._ended[pid] = status
        except ChildProcessError:
            return False

    def end(self) -> None:
        """Stop, then kill all descendants, and repeat until all are gone. Raises RuntimeError if some survive."""
        until = time.monotonic() + 5
        while self.reap():
            # Stop all before killing any, because a fork bomb replaces each process that is killed.
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
