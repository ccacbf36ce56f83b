"""Measure for how long a thread ran or would have liked to: what is left of the time on the wall it waited for others.

The time that a thread computes does not tell: on a machine where many compute, one that never waits runs but at times.
"""

from __future__ import annotations

import time

_OF_THREAD = "/proc/thread-self/schedstat"


def busy_s() -> float:
    """Return for how long this thread has run, or stood in line for a processor, in seconds since some moment.

    Where the system does not tell (it is Linux that does), for how long it has run.
    """
    try:
        with open(_OF_THREAD, "rb") as stream:
            ran_ns, in_line_ns, _ = stream.read().split()
    except (OSError, ValueError):
        return time.thread_time()
    return (int(ran_ns) + int(in_line_ns)) / 1e9
