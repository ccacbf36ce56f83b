"""Write the log of one rank: everything that libraries log or warn, in the run folder."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator

import rlhf_cli
from rlhf_cli.plan.launch_plan import NODE, log_name
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.text.redaction import redacted
from rlhf_cli.text.terminal_output import printable

_LIBRARIES = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_OURS = os.path.dirname(rlhf_cli.__file__) + os.sep


class _Redacted(logging.Formatter):
    """A formatter that removes secrets and control codes from its lines, including tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(redacted(super().format(record)))


@contextlib.contextmanager
def logging_into(folder: RunFolder, rank: int) -> Iterator[Callable[[], int]]:
    """Send everything that libraries log or warn to the log of this machine, repeated warnings once.

    Yields a function that returns the number of different warnings from the user's code or ours. Deprecation warnings
    of libraries do not count, because users cannot fix them.
    """
    file = folder.path / log_name(int(os.environ.get(NODE, "0")))
    handler = _LogFile(file, encoding="utf-8")
    handler.setFormatter(_Redacted(f"%(asctime)s rank{rank} %(levelname)s %(name)s: %(message)s"))
    warned: dict[str, bool] = {}

    def is_new(record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        message = record.getMessage()
        is_first = message not in warned
        warned.setdefault(message, _is_of_a_library(record))
        return is_first

    handler.addFilter(is_new)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    try:
        yield lambda: list(warned.values()).count(False)
    finally:
        logging.captureWarnings(False)
        root.setLevel(level)
        root.removeHandler(handler)
        with contextlib.suppress(OSError):
            handler.close()


def _is_of_a_library(record: logging.LogRecord) -> bool:
    """Return whether a record comes from an installed package or from Python itself."""
    is_warning = record.name == "py.warnings"  # its message starts with the file it warns about
    file = record.getMessage().partition(":")[0] if is_warning else record.pathname
    return file.startswith(("<", *_LIBRARIES)) and not file.startswith(_OURS)


class _LogFile(logging.FileHandler):
    """A log file that ignores errors of the disk: a full disk is reported at the terminal."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Ignore OSErrors; show any other error, because it is a bug."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)
