"""Keeps a run alive when nobody reads what it prints: the terminal is gone, or the pipe is closed (`| head -2`)."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO


class _Lasting:
    """A text stream that says no more once writing to it fails."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, as long as somebody reads."""
        try:
            return self._stream.write(text)
        except OSError:
            self._into_nothing()
            return len(text)

    def flush(self) -> None:
        """Flush, as long as somebody reads."""
        try:
            self._stream.flush()
        except OSError:
            self._into_nothing()

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def _into_nothing(self) -> None:
        """Lead what is still buffered, and what the process's children print, to nowhere."""
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


@contextlib.contextmanager
def lasting_output() -> Iterator[None]:
    """Open a context in which printing to a closed stdout or stderr is no error: what is printed is lost, no more."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Lasting(sys.stdout), _Lasting(sys.stderr)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # a stream that somebody closed
            sys.stdout.flush()
        sys.stdout, sys.stderr = before
