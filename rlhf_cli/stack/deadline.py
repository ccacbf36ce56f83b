"""Give a call a deadline: interrupt it by an alarm in the main thread, abandon it in other threads.

The kernel sends the alarm, so it arrives even while the call holds the interpreter lock. `re`, which may match forever
on some text, checks for signals (CPython's Modules/_sre/sre_lib.h), as do sleeping, waiting for a lock and reading from
a socket. Compiled code that never checks for signals can only be stopped in a process that can be killed (`isolate`).
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
"""Seconds between repeated alarms, for a call that catches the first one and continues."""


class Overdue(Exception):
    """Raised if a call did not finish in time."""


class _Alarm(BaseException):
    """Raised inside a call that is out of time; not an Exception, so that `except Exception` does not catch it."""


def call_within(call: Callable[[], object], timeout_s: float, *, name: str) -> object:
    """Return the call's result. Raise its errors, and Overdue after `timeout_s` seconds.

    Outside of the main thread, run it in a new thread called `name`, which is abandoned after the timeout.
    """
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer"):
        return _interrupted_after(call, timeout_s)
    # A Python thread cannot be killed: one that overruns is abandoned as a daemon. `isolate` can kill.
    answer = thread(name=name, daemon=True)(call)()
    if not wait([answer], timeout_s).done:
        raise Overdue
    return answer.result()


def _interrupted_after(call: Callable[[], object], timeout_s: float) -> object:
    """Enforce the deadline by an alarm; an earlier alarm is restored and fires at its time, but not before this one."""
    here: FrameType | None = sys._getframe()
    armed = [True]

    def ring(number: int, frame: FrameType | None) -> None:
        if armed and frame is not here:  # at this frame, the call has not begun or has returned
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
        here = None  # a frame that holds itself keeps all that called it, and a step's tensors, until gc looks
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        if others_s:
            left_s = max(others_s - (time.monotonic() - began), 1e-3)
            signal.setitimer(signal.ITIMER_REAL, left_s, others_every_s)
