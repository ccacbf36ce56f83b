"""Draw from a pool without repetition until it is exhausted."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from rlhf_cli.errors import DataError


def without_repeats(pool_size: int, count: int, rng: Random) -> Iterator[int]:
    """Yield `count` indices in [0, pool_size): one shuffle of the pool after another.

    A Fisher-Yates shuffle that stores only the places it moved, so a pool of 10^12 costs no more than `count`, and the
    first n draws do not depend on `count`.
    """
    moved: dict[int, int] = {}
    for drawn in range(count):
        position = drawn % pool_size
        if position == 0:
            moved.clear()
        pick = rng.randrange(position, pool_size)
        yield moved.get(pick, pick)
        moved[pick] = moved.get(position, position)


def check_max_value(max_value: int) -> None:
    """Raise DataError unless there are at least two different numbers in 0..max_value."""
    if max_value < 1:
        raise DataError("max_value below 1", where="max_value", got=max_value, expected="1 or more")


def check_fraction(key: str, value: float) -> None:
    """Raise DataError unless `value` is in [0, 1]."""
    if not 0 <= value <= 1:
        raise DataError(f"{key} is a share", where=key, got=value, expected="0 to 1")
