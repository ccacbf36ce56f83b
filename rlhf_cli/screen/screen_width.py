"""Makes consoles as wide as the terminal; in a pipe wide, for nobody sees there a table that is folded at 80."""

from __future__ import annotations

import os
import sys

from rich.console import Console

_PIPE_WIDTH = 200


def wide_console(pipe_width: int = _PIPE_WIDTH) -> Console:
    """Return a console on stdout; COLUMNS says how wide it is where it is no terminal, else `pipe_width`."""
    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else pipe_width)
