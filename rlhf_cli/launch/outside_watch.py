"""Watch a process from outside: a forked process sees a hang in which compiled code holds the GIL.

Inside the hanging process no Python code runs. A timer thread in C would run, but the clock goes on while a process is
stopped (SIGSTOP, a paused container), so it would end the process as soon as that continues. The forked process counts
its own looks instead, and starts again whenever one of the two processes was stopped.
"""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import re
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from os import _exit
from typing import IO

from rlhf_cli.errors import EXIT_CRASH
from rlhf_cli.process import die_with
from rlhf_cli.runs.process_identity import is_stopped

Stacks = tuple[tuple[str, ...], ...]
"""The stacks of a process, main thread first, each a list of `file:line in function`, innermost last."""

_DUMP = getattr(signal, "SIGRTMAX", signal.SIGUSR2)
"""faulthandler's C handler of this signal writes the stacks, whoever holds the GIL."""
_DUMP_S = 1.0
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGTSTP)


@contextlib.contextmanager
def watched_from_outside(
    look_s: float, most_looks: int, is_watched: Callable[[], bool], report: Callable[[Callable[[], Stacks]], object]
) -> Iterator[Callable[[], object]]:
    """Open a context that yields a function; the process is killed once that was not called during `most_looks` looks.

    `look_s` are the seconds between two looks. Looks at which `is_watched` is false do not count. `report` is called
    before the process is killed, with a function that returns its stacks. Both are called in the forked process.
    """
    with mmap.mmap(-1, mmap.PAGESIZE) as shared, tempfile.TemporaryFile() as dump:

        def show_life() -> None:
            shared[0] = (shared[0] + 1) % 256

        faulthandler.register(_DUMP, file=dump, all_threads=True)
        watched = os.getpid()
        with warnings.catch_warnings():  # Python 3.12 warns of locks that other threads hold; none is needed here
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                for number in _IGNORED:
                    signal.signal(number, signal.SIG_IGN)
                die_with(watched)
                if _is_silent(watched, shared, look_s, most_looks, is_watched):
                    try:
                        report(lambda: _stacks(watched, dump))
                    finally:
                        os.kill(watched, signal.SIGKILL)
            finally:
                _exit(EXIT_CRASH)
        try:
            yield show_life
        finally:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            faulthandler.unregister(_DUMP)


def _is_silent(watched: int, shared: mmap.mmap, look_s: float, most_looks: int, is_watched: Callable[[], bool]) -> bool:
    """Return True once a process has shown no life for so many looks, and False when it has ended."""
    silent, last = 0, -1
    while silent < most_looks:
        looked_at = time.monotonic()
        time.sleep(look_s)
        was_stopped = time.monotonic() - looked_at > 2 * look_s + 1.0 or is_stopped(watched)
        if os.getppid() != watched:
            return False
        silent = 0 if was_stopped or shared[0] != last or not is_watched() else silent + 1
        last = shared[0]
    return True


def _stacks(watched: int, dump: IO[bytes]) -> Stacks:
    """Make a process write its stacks, and read them; those of the threads that started first come first."""
    os.kill(watched, _DUMP)
    written, until = -1, time.monotonic() + _DUMP_S
    while time.monotonic() < until and written != (now := os.fstat(dump.fileno()).st_size):
        written = now or -1
        time.sleep(_DUMP_S / 10)
    threads = os.pread(dump.fileno(), max(written, 0), 0).decode(errors="replace").split("\n\n")
    frames = (re.findall(r'File "(.*)", line (\d+) in (.*)', thread) for thread in threads)
    found = (tuple(f"{file}:{line} in {name}" for file, line, name in reversed(thread)) for thread in frames)
    return tuple(stack for stack in reversed([*found]) if stack)
