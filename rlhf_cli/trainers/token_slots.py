"""Count the token slots that a model computes and the real tokens in them: the cost of padding, the gain of packing.

Code that passes rows of tokens to a model calls `count` once, right where it calls the model; wrappers that delegate to
such code do not. Without a listener, a call only checks an empty list.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class TokenSlots:
    """Counts since they were last taken."""

    def __init__(self) -> None:
        self._slots = 0
        self._tokens: int | Tensor = 0

    def add(self, slots: int, tokens: int | Tensor) -> None:
        """Add a pass. A tensor stays on its device until the sum is taken."""
        self._slots += slots
        self._tokens = self._tokens + tokens

    def taken(self) -> tuple[int, int]:
        """Return (slots, real tokens) since the last call."""
        slots, tokens = self._slots, int(self._tokens)
        self._slots, self._tokens = 0, 0
        return slots, tokens


_listeners: list[TokenSlots] = []


def count(slots: int, tokens: int | Tensor) -> None:
    """Record that a model's pass had `slots` positions for `tokens` tokens of the rows.

    Each row counts all its tokens, even if rows share the slots of their prompt, so the ratio may be below 1. `tokens`
    is a number, or a scalar tensor.
    """
    for slots_of in _listeners:
        slots_of.add(slots, tokens)


@contextlib.contextmanager
def counted_slots() -> Iterator[TokenSlots]:
    """Count every pass of this process in this context."""
    counted = TokenSlots()
    _listeners.append(counted)
    try:
        yield counted
    finally:
        _listeners.remove(counted)


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """Count no pass in this context: an evaluation's passes are not part of the training."""
    asking = list(_listeners)
    _listeners.clear()
    try:
        yield
    finally:
        _listeners[:] = asking
