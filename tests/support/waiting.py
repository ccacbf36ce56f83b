"""Wait for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_Found = TypeVar("_Found")


def until(condition: Callable[[], _Found], timeout_s: float = 60.0) -> _Found:
    """Return what the condition gives as soon as that is true; fail after the timeout."""
    end = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < end, found
        time.sleep(0.02)
    return found
