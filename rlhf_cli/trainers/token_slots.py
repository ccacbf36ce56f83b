"""Counts how many token slots a model computed for how many real tokens: what padding costs, what packing saves.

Whoever runs a pass over rows of tokens calls `count` once for it, right where the model is called; a pass that hands
its rows on to one that counts does not. Where nobody asks a call costs a look at an empty list.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a worker hears signals before it imports torch
    from torch import Tensor


class TokenSlots:
    """What was counted since it was last taken."""

    def __init__(self) -> None:
        self._slots = 0
        self._tokens: int | Tensor = 0

    def add(self, slots: int, tokens: int | Tensor) -> None:
        """Add a pass. A tensor stays on its device until the sum is taken."""
        self._slots += slots
        self._tokens = self._tokens + tokens

    def taken(self) -> tuple[int, int]:
        """Return (slots, real tokens) since this was last called."""
        slots, tokens = self._slots, int(self._tokens)
        self._slots, self._tokens = 0, 0
        return slots, tokens


_asking: list[TokenSlots] = []


def count(slots: int, tokens: int | Tensor) -> None:
    """Say that a model's pass had `slots` places for `tokens` tokens of the rows: of every row all of its own, also
    where rows share the slots of their prompt, so that the ratio may be below 1. `tokens` is a number, or () a tensor.
    """
    for slots_of in _asking:
        slots_of.add(slots, tokens)


@contextlib.contextmanager
def counted_slots() -> Iterator[TokenSlots]:
    """Open a context in which every pass of this process is counted."""
    counted = TokenSlots()
    _asking.append(counted)
    try:
        yield counted
    finally:
        _asking.remove(counted)


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """Open a context in which no pass is counted: an evaluation's are not those of the training."""
    asking = list(_asking)
    _asking.clear()
    try:
        yield
    finally:
        _asking[:] = asking
