"""Lets a command be stopped before it trains anything: a signal then is a Ctrl-C, which has a message and exit code 75.

Python's own answer to SIGTERM is to die of it, and a scheduler takes that for a failure.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from rlhf_cli.errors import Interrupted
from rlhf_cli.launch.stopping import handled


@contextmanager
def stopped_early() -> Iterator[None]:
    """Open a context in which SIGTERM and SIGUSR1 raise Interrupted; what trains inside it answers them itself."""
    with handled(dict.fromkeys((signal.SIGTERM, signal.SIGUSR1), _leave)):
        yield


def _leave(number: int, _: FrameType | None) -> NoReturn:
    raise Interrupted(signal.Signals(number).name)
