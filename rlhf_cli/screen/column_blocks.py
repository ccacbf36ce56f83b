"""Split the columns of a wide table into blocks, so that no number is cut on a narrow terminal."""

from __future__ import annotations

from collections.abc import Sequence

_NUMBER, _GAP = 7, 2
"""Width of a number up to `-12.345`, and of the gap after it, in characters."""


def column_blocks(names: Sequence[str], room: int) -> list[list[str]]:
    """Return the names in order, split into blocks whose number columns fit side by side in `room` characters.

    A name that is wider than `room` gets a block of its own.
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
    """Return the total width of number columns with these names, in characters, including the gap after each."""
    return sum(max(len(name), _NUMBER) + _GAP for name in names)
