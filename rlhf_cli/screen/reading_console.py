"""Gives the console for what is read, not watched: as wide as the terminal, and wide where nobody sees a fold."""

from __future__ import annotations

import os
import sys

from rich.console import Console

_PIPE_WIDTH = 200


def reading_console() -> Console:
    """Return a console for stdout that folds at the terminal's width, and hardly ever in a pipe or a file."""
    is_piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=_PIPE_WIDTH if is_piped else None, highlight=False)
