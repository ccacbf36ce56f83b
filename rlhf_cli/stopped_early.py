"""Handle signals before training starts: treat them like Ctrl-C, with a message and exit code 75.

By default SIGTERM kills Python, which a scheduler takes for a failure. Once training starts, launch/stopping.py handles
signals.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from rlhf_cli.errors import Interrupted

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


@contextmanager
def stopped_early() -> Iterator[None]:
    """Open a context in which SIGTERM and SIGUSR1 raise Interrupted; does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _leave) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int, _: FrameType | None) -> NoReturn:
    raise Interrupted(signal.Signals(number).name)
