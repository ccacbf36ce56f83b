"""Suggests the nearest valid name to what somebody typed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(typed: str, valid: Iterable[str]) -> str | None:
    """Return the valid name most like `typed`, or None when nothing comes close."""
    matches = difflib.get_close_matches(typed, list(valid), n=1, cutoff=0.6)
    return matches[0] if matches else None


def did_you_mean(typed: str, valid: Iterable[str]) -> str | None:
    """Return `did you mean 'x'?`, or None when nothing comes close."""
    match = nearest(typed, valid)
    return f"did you mean {match!r}?" if match else None
