"""Writes paths as somebody in this folder would type them: what is frozen in a run folder is absolute."""

from __future__ import annotations

import os
import re
from pathlib import Path

_BEFORE = r"(?<![^\s'\"(=,])"


def from_here(text: str) -> str:
    """Return a text in which the paths below the working folder are relative to it; others stay as they are."""
    here = str(Path.cwd())
    return text if here == os.sep else re.sub(_BEFORE + re.escape(here + os.sep), "", text)


def function_from_here(fn: str) -> str:
    """Return `./rewards.py:short` for a function of a file below the working folder, another one as it is named."""
    relative = from_here(fn)
    return fn if relative == fn else f".{os.sep}{relative}"
