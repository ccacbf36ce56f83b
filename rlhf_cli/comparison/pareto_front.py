"""Finds the settings that no other is better than in everything: the Pareto front of two or three measures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MOST_MEASURES = 3


@dataclass(frozen=True)
class Front:
    """Settings by their means over seeds. `by` names the measures, `means` maps setting -> a number for each.

    `best` are on the front, `dominated` maps each other setting -> one on the front that is at least as good in
    everything and better in something, `unplaced` -> the measures that it lacks.
    """

    by: tuple[str, ...]
    means: Mapping[str, tuple[float, ...]]
    best: tuple[str, ...]
    dominated: Mapping[str, str]
    unplaced: Mapping[str, tuple[str, ...]]


def pareto_front(by: Sequence[str], signs: Sequence[int], means: Mapping[str, Sequence[float]]) -> Front:
    """Return the front; `signs` are 1 where more is better and -1 where less is. Equal settings share their fate."""
    unplaced = {
        name: tuple(label for label, value in zip(by, values, strict=True) if not math.isfinite(value))
        for name, values in means.items()
        if not all(map(math.isfinite, values))
    }
    signed = {
        name: tuple(sign * value for sign, value in zip(signs, values, strict=True))
        for name, values in means.items()
        if name not in unplaced
    }
    best = tuple(name for name in signed if not any(_dominates(other, signed[name]) for other in signed.values()))
    dominated = {
        name: next(one for one in best if _dominates(signed[one], values))
        for name, values in signed.items()
        if name not in best
    }
    return Front(tuple(by), {name: tuple(values) for name, values in means.items()}, best, dominated, unplaced)


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    return one != other and all(a >= b for a, b in zip(one, other, strict=True))
