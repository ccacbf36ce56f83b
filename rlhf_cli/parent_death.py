"""Ends a process when the one that started it is gone, however that ended: nobody is left to stop an orphan."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent, of that process id, dies; at once where it is gone already.

    The signal cannot be caught: a parent that is gone has let go of the run's lock, and nobody may write any more. It
    comes when the thread ends that started this process. Only Linux knows this; elsewhere nothing is done.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel was asked
        os.kill(os.getpid(), signal.SIGKILL)
