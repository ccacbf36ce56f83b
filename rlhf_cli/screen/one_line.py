"""A prompt or completion on one line of a table."""

from __future__ import annotations

from typing import Any


def one_line(value: Any) -> str:
    """Line breaks and the like as escapes; of a conversation the last message."""
    if isinstance(value, list):
        value = value[-1]["content"] if value else ""
    return repr(str(value))[1:-1]
