"""Measure a thread's CPU time plus the time it was ready to run; the rest of the elapsed time is waiting.

CPU time alone is misleading: on a busy machine, a thread that never waits runs only part of the time.
"""

from __future__ import annotations

import time

_OF_THREAD = "/proc/thread-self/schedstat"


def busy_s() -> float:
    """Return the seconds that this thread has run or was ready to run, from an arbitrary start.

    Without Linux's schedstat, return its CPU time only.
    """
    try:
        with open(_OF_THREAD, "rb") as stream:
            ran_ns, in_line_ns, _ = stream.read().split()
    except (OSError, ValueError):
        return time.thread_time()
    return (int(ran_ns) + int(in_line_ns)) / 1e9
