"""Make printed text safe for a terminal: hide secrets and escape foreign control codes.

A completion, a row or an exception may hold codes that clear the screen, recolour it, or turn the reading direction.
`printable` writes them as `\\x1b` or `\\u202e`. stdout and stderr do so with everything written to them except `Drawn`
text, whose codes are our own.
"""

from __future__ import annotations

import contextlib
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from typing import TextIO, cast

from rlhf_cli.errors import shortened
from rlhf_cli.text.redaction import redacted, remember

CONTROL = re.compile(r"[\0-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]|\r(?!\n)")
"""C0 except tab and line ends, DEL, C1, bidirectional embeddings, overrides and isolates, and lone surrogates."""
_PADDING = re.compile(r" +(?=\n)")
_BARS = "tqdm"
"""The library whose progress bars move the cursor; recognised by the name of the calling module."""


class Drawn(str):
    """Text for a terminal in which all control codes are our own."""


def printable(text: str) -> str:
    """Return a text with its control codes escaped as `\\x1b`; keep tabs and line ends."""
    return CONTROL.sub(lambda match: f"\\x{code:02x}" if (code := ord(match[0])) < 0x100 else f"\\u{code:04x}", text)


class OverStream:
    """A text stream that changes what is written to another stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


class OutputLost(OSError):
    """What was printed did not arrive, such as on a full disk. A closed pipe is a BrokenPipeError instead."""


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """Open a context in which an output that cannot be written raises OutputLost, apart from errors of other files."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputLost(error.errno, error.strerror) from error


def is_of_a_bar() -> bool:
    """Return whether a progress bar called the `write` that asks, directly or through another OverStream."""
    caller = sys._getframe(2)
    while caller.f_back is not None and isinstance(caller.f_locals.get("self"), OverStream):
        caller = caller.f_back
    return str(caller.f_globals.get("__name__", "")).startswith(_BARS)


class SafeStream(OverStream):
    """A text stream that removes secrets and foreign control codes and writes to another stream."""

    def write(self, text: str) -> int:
        """Write a text made safe; return the length of the original text."""
        safe = redacted(text)
        with printing():
            self._stream.write(safe if isinstance(text, Drawn) or is_of_a_bar() else printable(safe))
        return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        with printing():
            self._stream.flush()

    def writelines(self, lines: Iterable[str]) -> None:
        """Write texts made safe."""
        for line in lines:
            self.write(line)


class DrawnOn(OverStream):
    """A text stream that passes its text on as `Drawn`, without the blanks that pad tables unless at a terminal."""

    def write(self, text: str) -> int:
        """Write a text whose control codes are our own."""
        return self._stream.write(Drawn(text if self._stream.isatty() else _PADDING.sub("", text)))


@contextlib.contextmanager
def safe_output() -> Iterator[None]:
    """Make text printed to stdout and stderr safe inside the `with` block."""
    with contextlib.ExitStack() as stack:
        if not isinstance(sys.stdout, SafeStream):
            stack.enter_context(contextlib.redirect_stdout(cast(TextIO, SafeStream(sys.stdout))))
        if not isinstance(sys.stderr, SafeStream):
            stack.enter_context(contextlib.redirect_stderr(cast(TextIO, SafeStream(sys.stderr))))
        yield


def safe_output_for_good(values: Iterable[str]) -> None:
    """Make this process's output safe until it ends, and hide these values in it."""
    for value in values:
        remember(value)
    sys.stdout, sys.stderr = cast(TextIO, SafeStream(sys.stdout)), cast(TextIO, SafeStream(sys.stderr))


def traceback_of(error: BaseException) -> str:
    """Return an error's traceback as Python prints it, shortened."""
    return shortened("".join(traceback.format_exception(error)))
