"""Knows when nobody reads what is printed (a terminal that is gone, `| head -2`), and keeps a run alive then."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Iterable, Iterator
from typing import TextIO


class Lasting:
    """A text stream that says no more once writing to it fails."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, as long as somebody reads."""
        try:
            return self._stream.write(text)
        except OSError:
            into_nothing(self._stream)
            return len(text)

    def flush(self) -> None:
        """Flush, as long as somebody reads."""
        try:
            self._stream.flush()
        except OSError:
            into_nothing(self._stream)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def into_nothing(stream: TextIO) -> None:
    """Lead what is still buffered in a stream, and what the process's children print to it, to nowhere."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def open_closed_streams() -> None:
    """Put /dev/null where a shell closed stdout or stderr (`>&-`): no file that is opened later takes their place."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  as long as the process


def nobody_reads(streams: Iterable[TextIO]) -> bool:
    """Return whether the pipe behind one of these streams has no reader any more."""
    ends = select.poll()
    for stream in streams:
        with contextlib.suppress(
            OSError, ValueError, AttributeError
        ):  # no file of the system's: a test's, a notebook's
            ends.register(stream.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in ends.poll(0))


@contextlib.contextmanager
def lasting_output() -> Iterator[None]:
    """Open a context in which printing to a closed stdout or stderr is no error: what is printed is lost, no more."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = Lasting(sys.stdout), Lasting(sys.stderr)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # a stream that somebody closed
            sys.stdout.flush()
        sys.stdout, sys.stderr = before
