"""Deals the columns of a wide table out to several that fit, so that no number is cut on a narrow terminal."""

from __future__ import annotations

from collections.abc import Sequence

_NUMBER, _GAP = 7, 2
"""A figure of up to `-12.345`, and the blanks behind it."""


def column_blocks(names: Sequence[str], room: int) -> list[list[str]]:
    """Return the names in their order, in blocks whose columns of numbers fit into `room` characters side by side.

    A name that is wider than all the room has a block of its own.
    """
    blocks: list[list[str]] = []
    left = 0
    for name in names:
        width = blocks_width([name])
        if not blocks or width > left:
            blocks.append([])
            left = room
        blocks[-1].append(name)
        left -= width
    return blocks


def blocks_width(names: Sequence[str]) -> int:
    """Return the characters that columns of numbers under these names take, with the blanks behind them."""
    return sum(max(len(name), _NUMBER) + _GAP for name in names)
