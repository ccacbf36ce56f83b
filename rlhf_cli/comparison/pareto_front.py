"""Find the settings that are not dominated by another: the Pareto front of two or three measures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MOST_MEASURES = 3


@dataclass(frozen=True)
class Front:
    """Settings by their means over seeds. `by` lists the measures, `means` maps setting -> one number per measure.

    `best` are on the front. `dominated` maps each other setting -> one on the front that is at least as good in all
    measures and better in one. `unplaced` maps a setting -> the measures that it lacks.
    """

    by: tuple[str, ...]
    means: Mapping[str, tuple[float, ...]]
    best: tuple[str, ...]
    dominated: Mapping[str, str]
    unplaced: Mapping[str, tuple[str, ...]]


def pareto_front(by: Sequence[str], signs: Sequence[int], means: Mapping[str, Sequence[float]]) -> Front:
    """Return the front; `signs` are 1 if more is better, -1 if less is. Equal settings do not dominate each other."""
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
