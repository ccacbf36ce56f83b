"""How often the intervals and verdicts of `rlhf compare` are right, on simulated sweeps whose truth is known.

    python -m scripts.bench.verdicts                1,000 sweeps a row: the table of docs/how-to/compare.md
    python -m scripts.bench.verdicts --sweeps 100

Every row has random numbers of its own, drawn from its name. A curve climbs to its end and has, on top, what its seed
adds to all settings (deviation 0.05: the model that it begins
with, its prompts), what seed and setting add together (0.03), and noise from log event to log event (0.05) that is
autocorrelated by 0.8. No setting is better than another. Each number is the mean of the last tenth of 50 log events, as
`rlhf compare` takes it, and goes through the very functions that the command uses.

Rows below the line leave one part of the method out: they have to be wrong.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

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
    """What is simulated. `noisier` multiplies what seed and setting add together in the last setting."""

    name: str
    seeds: int = 5
    values: int = 3
    measures: int = 1
    with_baseline: bool = False
    noisier: float = 1.0
    bounded: bool = False
    """Shares of right answers near 1: what is added is squeezed below it, and so is skewed."""


@dataclass(frozen=True)
class Rates:
    """Shares of the sweeps: `mean` of one setting's intervals that held the truth, `difference` of one
    difference's (as if it were the only one), `together` of sweeps whose intervals all held, `alarms` of sweeps with a
    verdict for any setting.
    """

    mean: float
    difference: float
    together: float
    alarms: float


SCENARIOS = (
    Scenario("5 seeds, 3 values"),
    Scenario("5 seeds, 5 values", values=5),
    Scenario("5 seeds, 4 values, 3 components", values=4, measures=3),
    Scenario("5 seeds, 5 values, a baseline", values=5, with_baseline=True),
    Scenario("3 seeds, 3 values", seeds=3),
    Scenario("10 seeds, 3 values", seeds=10),
    Scenario("5 seeds, one value 3 times as noisy", noisier=3.0),
    Scenario("5 seeds, shares near 1 (skewed)", bounded=True),
)


def sweeps(scenario: Scenario, count: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """Yield what is measured of one sweep after another: (measures, values, seeds)."""
    random = np.random.default_rng([seed, *scenario.name.encode()])
    shape = (scenario.measures, scenario.values, scenario.seeds)
    steps = np.arange(1, _EVENTS + 1)
    climb = _END * (1 - np.exp(-steps / 10))
    scale = np.ones(scenario.values)
    scale[-1] = scenario.noisier
    window = Window()
    for _ in range(count):
        of_seed = random.normal(0, _OF_SEED, (scenario.measures, 1, scenario.seeds))
        of_both = random.normal(0, _OF_BOTH, shape) * scale[None, :, None]
        noise = _autocorrelated(random, (*shape, _EVENTS)) * _NOISE
        curves = climb + (of_seed + of_both)[..., None] + noise
        if scenario.bounded:
            curves = 1 / (1 + np.exp(-(2.5 + 12 * (curves - climb)))) * climb / _END
        yield np.array([[[window.of(Series(steps, curve)) for curve in row] for row in measure] for measure in curves])


def truth_of(scenario: Scenario) -> float:
    """Return the mean that every setting really has; of skewed shares by drawing many."""
    if not scenario.bounded:
        steps = np.arange(1, _EVENTS + 1)
        return float((_END * (1 - np.exp(-steps / 10)))[-_EVENTS // 10 :].mean())
    drawn = [sweep.mean() for sweep in sweeps(replace(scenario, seeds=100, values=3, measures=1), 60, seed=99)]
    return float(np.mean(drawn))


def measure(scenario: Scenario, count: int, *, seed: int = 0, corrected: bool = True, paired: bool = True) -> Rates:
    """Simulate `count` sweeps and return how often what is said of them is right."""
    truth = truth_of(scenario)
    names = [str(value) for value in range(scenario.values)]
    pairs = pairs_of(names, names[0] if scenario.with_baseline else None)
    comparisons = len(pairs) * scenario.measures if corrected else 1
    held: dict[str, list[bool]] = {name: [] for name in ("mean", "difference", "together", "alarms")}
    for sweep in sweeps(scenario, count, seed):
        first = list(map(float, sweep[0, 0]))
        held["mean"].append(_holds(estimate(first), truth))
        decided, inside = [], []
        for of_measure in sweep:
            values = {
                name: {str(place): float(number) for place, number in enumerate(row)}
                for name, row in zip(names, of_measure, strict=True)
            }
            for value, other in pairs:
                if paired:
                    one = paired_difference(values, value, other, sign=1, comparisons=comparisons)
                    decided.append(one.outcome in (BETTER, WORSE))
                    inside.append(_holds(one.difference, 0.0))
                else:
                    low, high = _unpaired(list(values[value].values()), list(values[other].values()), comparisons)
                    decided.append(not low <= 0 <= high)
                    inside.append(low <= 0 <= high)
        alone = paired_difference(values, *pairs[0], sign=1, comparisons=1)
        held["difference"].append(_holds(alone.difference, 0.0) if paired else inside[0])
        held["together"].append(all(inside))
        held["alarms"].append(any(decided))
    return Rates(**{name: statistics.fmean(found) for name, found in held.items()})


def _holds(one: object, truth: float) -> bool:
    low, high = getattr(one, "low"), getattr(one, "high")  # noqa: B009
    return low is not None and high is not None and low <= truth <= high


def _unpaired(one: list[float], other: list[float], comparisons: int) -> tuple[float, float]:
    """Student's interval of a difference of two independent means: what forgets that seeds are shared."""
    count = len(one)
    half = t_quantile(1 - 0.05 / (2 * comparisons), 2 * count - 2)
    half *= math.sqrt((statistics.variance(one) + statistics.variance(other)) / count)
    gap = statistics.fmean(one) - statistics.fmean(other)
    return gap - half, gap + half


def _autocorrelated(random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """AR(1) of deviation 1 along the last axis."""
    noise = random.normal(size=shape)
    for event in range(1, shape[-1]):
        noise[..., event] *= math.sqrt(1 - _CORRELATION**2)
        noise[..., event] += _CORRELATION * noise[..., event - 1]
    return noise


def table(count: int) -> Iterator[str]:
    """Yield the lines of the table, in Markdown."""
    yield "| sweeps without any difference | mean | a difference | all together | false alarms |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    rows: list[tuple[str, Callable[[], Rates]]] = [
        (scenario.name, lambda scenario=scenario: measure(scenario, count)) for scenario in SCENARIOS
    ]
    many = SCENARIOS[1]
    rows.append((f"*not corrected*: {many.name}", lambda: measure(many, count, corrected=False)))
    rows.append((f"*not paired*: {SCENARIOS[0].name}", lambda: measure(SCENARIOS[0], count, paired=False)))
    for name, simulate in rows:
        rates = simulate()
        numbers = (rates.mean, rates.difference, rates.together, rates.alarms)
        yield f"| {name} | {' | '.join(f'{number:.1%}' for number in numbers)} |".replace("%", " %")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sweeps", type=int, default=1000)
    for line in table(parser.parse_args().sweeps):
        print(line, flush=True)
