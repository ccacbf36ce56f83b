"""Keeps the log of one rank: everything that libraries log or warn, in the run folder."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator

from rlhf_cli.plan.launch_plan import NODE, log_name
from rlhf_cli.redaction import redacted
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.terminal_output import printable


class _Redacted(logging.Formatter):
    """A formatter whose lines, tracebacks included, hold no secret and no control code."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(redacted(super().format(record)))


@contextlib.contextmanager
def logging_into(folder: RunFolder, rank: int) -> Iterator[Callable[[], int]]:
    """Send everything libraries log or warn to the log of this machine, a repeated warning once.

    Yields a function that returns how many different warnings there were.
    """
    file = folder.path / log_name(int(os.environ.get(NODE, "0")))
    handler = _LogFile(file, encoding="utf-8")
    handler.setFormatter(_Redacted(f"%(asctime)s rank{rank} %(levelname)s %(name)s: %(message)s"))
    warned: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        message = record.getMessage()
        is_first = message not in warned
        warned.add(message)
        return is_first

    handler.addFilter(is_new)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    try:
        yield lambda: len(warned)
    finally:
        logging.captureWarnings(False)
        root.setLevel(level)
        root.removeHandler(handler)
        with contextlib.suppress(OSError):
            handler.close()


class _LogFile(logging.FileHandler):
    """A log that finds no room on the disk stays silent: what else is wrong then is said at the terminal."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Pass over an error of the system's; another one is a bug, and is shown."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)
