"""Detect that the reader of the output has gone (closed terminal, `| head -2`), and keep the run alive."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Iterable, Iterator
from typing import TextIO


class Lasting:
    """A text stream that discards its output once a write fails."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, or discard the text if the reader has gone."""
        try:
            return self._stream.write(text)
        except OSError:
            into_nothing(self._stream)
            return len(text)

    def flush(self) -> None:
        """Flush, or discard the buffer if the reader has gone."""
        try:
            self._stream.flush()
        except OSError:
            into_nothing(self._stream)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def into_nothing(stream: TextIO) -> None:
    """Redirect a stream to /dev/null, including its buffer and the output of child processes."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def open_closed_streams() -> None:
    """Open /dev/null if a shell closed stdout or stderr (`>&-`), so that no later file gets its number."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  open until the process ends


def nobody_reads(streams: Iterable[TextIO]) -> bool:
    """Return whether the pipe behind one of these streams has lost its reader."""
    ends = select.poll()
    for stream in streams:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # no file descriptor, as in a test or a notebook
            ends.register(stream.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in ends.poll(0))


@contextlib.contextmanager
def lasting_output() -> Iterator[None]:
    """Open a context in which output to a closed stdout or stderr is discarded without an error."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = Lasting(sys.stdout), Lasting(sys.stderr)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the stream was closed
            sys.stdout.flush()
        sys.stdout, sys.stderr = before
