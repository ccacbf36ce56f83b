"""End a process when its parent dies for any reason, because an orphan would not be stopped by anyone."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent `parent` dies; exit at once if it is already dead.

    The signal is SIGKILL: a dead parent has released the run's lock, so this process must not write any more. It is
    sent when the thread that started this process ends. Only Linux supports this; elsewhere the function does nothing.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent died before the call
        os.kill(os.getpid(), signal.SIGKILL)
