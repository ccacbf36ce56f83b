"""Counts what the interpreter executes: the same in every run of the same code, whatever the machine and its load."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType


def instructions(function: Callable[[], object]) -> int:
    """Return how many bytecode instructions `function` executes in Python code, whatever it calls; C is not seen."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal count
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def share_that_is_quadratic(of_rows: Callable[[int], Callable[[], object]], num_rows: int) -> float:
    """Return which share of the work for `3 * num_rows` rows grows with their square.

    Of `a + b n + c n^2` at n, 2n and 3n the second difference is `2 c n^2`; the share is `9 c n^2` of the last.
    """
    of_rows(num_rows)()  # what is imported and remembered is so from then on
    once, twice, thrice = (instructions(of_rows(count * num_rows)) for count in (1, 2, 3))
    return 4.5 * (thrice - 2 * twice + once) / thrice
