"""Simulated sweeps in which no setting is better, to count how often intervals and verdicts of `compare` are right.

A curve climbs to its end and has three additions: one of its seed, shared by all settings (deviation 0.05); one of
seed and setting (0.03); and noise of each log event (0.05), autocorrelated by 0.8. Each number is the mean of the last
tenth of 50 log events, as `rlhf compare` takes it, and goes through the functions of that command.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlhf_cli.analysis.comparison.metric_columns import Series, Window
from rlhf_cli.analysis.comparison.settings import estimate
from rlhf_cli.analysis.comparison.verdicts import BETTER, WORSE, paired_difference, pairs_of
from rlhf_cli.numerics.intervals import t_quantile

_EVENTS = 50
_OF_SEED, _OF_BOTH, _NOISE, _CORRELATION = 0.05, 0.03, 0.05, 0.8
_END = 0.6


@dataclass(frozen=True)
class Scenario:
    """Size of a sweep; `name` seeds its random numbers."""

    name: str
    values: int
    seeds: int = 5


@dataclass(frozen=True)
class Rates:
    """Shares of sweeps: with the truth in one setting's interval (`mean`), in one difference's (`difference`), in all
    intervals (`together`), and with a verdict for any setting (`alarms`).
    """

    mean: float
    difference: float
    together: float
    alarms: float


THREE_VALUES, FIVE_VALUES = Scenario("5 seeds, 3 values", 3), Scenario("5 seeds, 5 values", 5)


def sweeps(scenario: Scenario, count: int) -> Iterator[NDArray[np.float64]]:
    """Yield the measured numbers of one sweep after another: (values, seeds)."""
    random = np.random.default_rng([0, *scenario.name.encode()])
    steps = np.arange(1, _EVENTS + 1)
    window = Window()
    for _ in range(count):
        by_seed = random.normal(0, _OF_SEED, (1, 1, scenario.seeds))
        by_both = random.normal(0, _OF_BOTH, (1, scenario.values, scenario.seeds))
        noise = _autocorrelated(random, (1, scenario.values, scenario.seeds, _EVENTS)) * _NOISE
        curves = (_climb() + (by_seed + by_both)[..., None] + noise)[0]
        yield np.array([[window.of(Series(steps, curve)) for curve in row] for row in curves])


def _climb() -> NDArray[np.float64]:
    climb: NDArray[np.float64] = _END * (1 - np.exp(-np.arange(1, _EVENTS + 1) / 10))
    return climb


def measure(scenario: Scenario, count: int, *, corrected: bool = True, paired: bool = True) -> Rates:
    """Simulate `count` sweeps and return how often the intervals and verdicts are right."""
    truth = float(_climb()[-_EVENTS // 10 :].mean())
    names = [str(value) for value in range(scenario.values)]
    pairs = pairs_of(names, None)
    comparisons = len(pairs) if corrected else 1
    held: dict[str, list[bool]] = {name: [] for name in ("mean", "difference", "together", "alarms")}
    for sweep in sweeps(scenario, count):
        held["mean"].append(_holds(estimate(list(map(float, sweep[0]))), truth))
        values = {
            name: {str(seed): float(number) for seed, number in enumerate(row)}
            for name, row in zip(names, sweep, strict=True)
        }
        decided, inside = [], []
        for value, other in pairs:
            if paired:
                compared = paired_difference(values, value, other, sign=1, comparisons=comparisons)
                decided.append(compared.outcome in (BETTER, WORSE))
                inside.append(_holds(compared.difference, 0.0))
            else:
                low, high = _unpaired(list(values[value].values()), list(values[other].values()), comparisons)
                decided.append(not low <= 0 <= high)
                inside.append(low <= 0 <= high)
        alone = paired_difference(values, *pairs[0], sign=1, comparisons=1)
        held["difference"].append(_holds(alone.difference, 0.0) if paired else inside[0])
        held["together"].append(all(inside))
        held["alarms"].append(any(decided))
    return Rates(**{name: statistics.fmean(shares) for name, shares in held.items()})


def _holds(interval: object, truth: float) -> bool:
    low, high = getattr(interval, "low"), getattr(interval, "high")  # noqa: B009
    return low is not None and high is not None and low <= truth <= high


def _unpaired(first: list[float], other: list[float], comparisons: int) -> tuple[float, float]:
    """Return Student's interval of a difference of two independent means, which ignores shared seeds."""
    count = len(first)
    half = t_quantile(1 - 0.05 / (2 * comparisons), 2 * count - 2)
    half *= math.sqrt((statistics.variance(first) + statistics.variance(other)) / count)
    gap = statistics.fmean(first) - statistics.fmean(other)
    return gap - half, gap + half


def _autocorrelated(random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return AR(1) noise of deviation 1 along the last axis."""
    noise = random.normal(size=shape)
    for event in range(1, shape[-1]):
        noise[..., event] *= math.sqrt(1 - _CORRELATION**2)
        noise[..., event] += _CORRELATION * noise[..., event - 1]
    return noise
