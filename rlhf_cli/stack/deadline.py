"""Give a call a deadline: in the main thread by an alarm that interrupts it, elsewhere by leaving it behind.

The kernel sends the alarm, so that it comes while the call holds the interpreter; `re`, which may match for ever on a
text that nobody foresaw, looks for signals as it goes (cpython's Modules/_sre/sre_lib.h), as sleeping, waiting for a
lock and reading from a socket do. Compiled code that looks for none is interrupted by nothing, but in a process that
can be killed (`isolate`).
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import wait
from types import FrameType

from pebble.concurrent import thread

_AGAIN_S = 1.0
"""A call that catches the alarm and goes on is told again after so long."""


class Overdue(Exception):
    """Say that a call did not answer in its time."""


class _Alarm(BaseException):
    """Raised within a call whose time is over; what catches every Exception does not catch it."""


def call_within(call: Callable[[], object], timeout_s: float, *, name: str) -> object:
    """Return what the call returns. Raises what it raises, and Overdue after `timeout_s` seconds.

    In a thread other than the main one it runs in one of its own, called `name`, which is left behind then.
    """
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer"):
        return _interrupted_after(call, timeout_s)
    # A Python thread cannot be killed: one that overruns is left behind as a daemon. `isolate` can kill.
    answer = thread(name=name, daemon=True)(call)()
    if not wait([answer], timeout_s).done:
        raise Overdue
    return answer.result()


def _interrupted_after(call: Callable[[], object], timeout_s: float) -> object:
    """Do it by an alarm. One that somebody else has set goes off when it would have, and not before this one."""
    here = sys._getframe()
    armed = [True]

    def ring(number: int, frame: FrameType | None) -> None:
        if armed and frame is not here:  # here it has not begun, or has returned
            raise _Alarm

    before = signal.signal(signal.SIGALRM, ring)
    began = time.monotonic()
    others_s, others_every_s = signal.setitimer(signal.ITIMER_REAL, timeout_s, _AGAIN_S)
    try:
        return call()
    except _Alarm:
        raise Overdue from None
    finally:
        armed.clear()
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        if others_s:
            left_s = max(others_s - (time.monotonic() - began), 1e-3)
            signal.setitimer(signal.ITIMER_REAL, left_s, others_every_s)
