"""Ends a process without Python's own clearing up: it may never come to an end, and for a question it takes long."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End this process with `code`, when what was registered for its exit has run and its output is written.

    To take some six hundred modules down again costs as much as to compose an experiment. And after FSDP 2 the
    interpreter's last garbage collection goes round in a broken list for ever (torch 2.13, seen on CPUs in three of
    four runs): the run would be finished, and its command would wait.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
