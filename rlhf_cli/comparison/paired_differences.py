"""Compute differences between values of one key seed by seed, and decide which are significant.

Runs of one seed share their prompts, their sampling and often their starting model, so the effect of a seed on both
cancels in their difference. Over n common seeds the difference has the paired t interval, d ± t(n - 1) s / sqrt(n).

All differences decided together form one family of m comparisons. Bonferroni's intervals, each with level 1 - 5 % / m,
all hold at once at least 95 times in a hundred, whatever the dependence between the comparisons. A difference is
significant if its interval excludes zero. Holm's test would reject slightly more, but intervals consistent with it end
at zero for every rejected hypothesis (Strassburger and Bretz 2008, Statistics in Medicine 27:4914; Guilbaud 2008,
Biometrical Journal 50:678), so they could not show how much better one value is.

The required number of seeds comes from the power of the noncentral t distribution, assuming that the observed
difference and deviation are exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, stdev

from rlhf_cli.numerics.intervals import LEVEL, Estimate, student, t_quantile

POWER = 0.8
"""The required power: how often this many seeds would detect a difference of the observed size."""

MOST_SEEDS = 1000
BETTER, WORSE, UNDECIDED, EQUAL, IMPOSSIBLE = "better", "worse", "undecided", "equal", "impossible"

Values = Mapping[str, Mapping[str, float]]
"""Map value of the key -> seed -> measured value."""


@dataclass(frozen=True)
class PairedDifference:
    """The difference `value` - `other` over their common seeds, in units of the metric.

    `difference` has the simultaneous interval of its family; `degrees` are those of its t, `effect` is d / s (None
    without a deviation), `p_value` is for this comparison alone, `p_adjusted` is multiplied by the number of
    comparisons, at most 1. `outcome` is about `value`: better, worse, undecided, equal in every seed, or impossible to
    decide.
    """

    value: str
    other: str
    seeds: tuple[str, ...]
    difference: Estimate
    outcome: str
    comparisons: int
    effect: float | None = None
    p_value: float | None = None
    p_adjusted: float | None = None

    @property
    def degrees(self) -> int:
        """Return the degrees of freedom of the t distribution."""
        return max(0, len(self.seeds) - 1)

    @property
    def seeds_needed(self) -> int | None:
        """Return how many seeds would probably decide an undecided difference.

        Return None if it is decided or if a thousand seeds are not enough.
        """
        if self.outcome != UNDECIDED or self.effect is None:
            return None
        return seeds_needed(self.effect, comparisons=self.comparisons)


def pairs_of(values: Sequence[str], baseline: str | None) -> list[tuple[str, str]]:
    """Return the pairs to compare: each value with the baseline, or all pairs without one."""
    if baseline is not None:
        return [(value, baseline) for value in values if value != baseline]
    return [(later, earlier) for earlier, later in combinations(values, 2)]


def paired_difference(values: Values, value: str, other: str, *, sign: int, comparisons: int) -> PairedDifference:
    """Compare two values of a key. `sign` is -1 if less is better, else 1; `comparisons` is the family's m."""
    here, there = values.get(value, {}), values.get(other, {})
    seeds = tuple(seed for seed in here if seed in there and math.isfinite(here[seed]) and math.isfinite(there[seed]))
    gaps = [here[seed] - there[seed] for seed in seeds]
    if len(gaps) < 2:
        mean = gaps[0] if gaps else None
        return PairedDifference(value, other, seeds, Estimate(mean, None, None, len(gaps)), IMPOSSIBLE, comparisons)
    deviation, mean = stdev(gaps), fmean(gaps)
    if deviation <= 1e-12 * max(map(abs, [*gaps, *(here[seed] for seed in seeds)])):
        outcome = EQUAL if abs(mean) <= deviation else IMPOSSIBLE
        return PairedDifference(value, other, seeds, Estimate(mean, None, None, len(gaps)), outcome, comparisons)
    found = student(gaps, comparisons=comparisons)
    assert found.low is not None
    assert found.high is not None
    is_decided = found.low > 0 or found.high < 0
    outcome = (BETTER if mean * sign > 0 else WORSE) if is_decided else UNDECIDED
    p_value = two_sided_p(mean / deviation * math.sqrt(len(gaps)), len(gaps) - 1)
    return PairedDifference(
        value,
        other,
        seeds,
        found,
        outcome,
        comparisons,
        effect=mean / deviation,
        p_value=p_value,
        p_adjusted=min(1.0, comparisons * p_value),
    )


def two_sided_p(t: float, degrees: int) -> float:
    """Return the probability of a t statistic at least this far from zero under the null hypothesis."""
    from scipy.special import stdtr

    return float(2 * stdtr(degrees, -abs(t)))


def power_of(effect: float, num_seeds: int, *, comparisons: int = 1) -> float:
    """Return the probability that the interval over `num_seeds` excludes zero on the right side, for this d / s."""
    from scipy.special import nctdtr

    critical = t_quantile(1 - (1 - LEVEL) / (2 * comparisons), num_seeds - 1)
    shift = abs(effect) * math.sqrt(num_seeds)
    missed = float(nctdtr(num_seeds - 1, shift, critical))
    if math.isnan(missed):  # SciPy's series does not converge in the far tail, where the answer is 0 or 1
        missed = 0.0 if shift > critical else 1.0
    return 1 - missed


def seeds_needed(effect: float, *, comparisons: int = 1) -> int | None:
    """Return the smallest number of seeds with a power of 80 %, or None if a thousand are not enough."""
    if effect == 0 or power_of(effect, MOST_SEEDS, comparisons=comparisons) < POWER:
        return None
    enough, too_few = MOST_SEEDS, 1
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        if power_of(effect, middle, comparisons=comparisons) >= POWER:
            enough = middle
        else:
            too_few = middle
    return enough
