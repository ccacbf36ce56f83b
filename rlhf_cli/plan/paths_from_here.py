"""Makes absolute paths relative to the working folder for display: paths frozen in a run folder are absolute."""

from __future__ import annotations

import os
import re
from pathlib import Path

_BEFORE = r"(?<![^\s'\"(=,])"


def from_here(text: str) -> str:
    """Return a text in which paths below the working folder are relative to it; other paths are unchanged."""
    here = str(Path.cwd())
    return text if here == os.sep else re.sub(_BEFORE + re.escape(here + os.sep), "", text)


def function_from_here(fn: str) -> str:
    """Return `./rewards.py:short` for a function in a file below the working folder; others unchanged."""
    relative = from_here(fn)
    return fn if relative == fn else f".{os.sep}{relative}"
