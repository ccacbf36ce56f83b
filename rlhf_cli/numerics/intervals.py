"""Say how sure a measured proportion or mean is, and what k attempts at a prompt come to. Plain floats, no torch.

All intervals are two-sided, of 95 %. Sources: Wilson (1927, JASA 22:209); pass@k: Chen et al., arXiv 2107.03374;
maj@k: Wang et al., arXiv 2203.11171. SciPy is imported where it is used: a configuration is judged without it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev

from rlhf_cli.json_values import finite_or_none

LEVEL = 0.95
"""How often an interval holds what it is about."""


@dataclass(frozen=True)
class Estimate:
    """Holds a mean of `count` values with its interval.

    Without a single value all three are None; without a deviation that can be estimated both bounds are.
    """

    mean: float | None
    low: float | None
    high: float | None
    count: int


def wilson(successes: float, count: int) -> Estimate:
    """Return the score interval of a proportion (Wilson 1927), sound also at 0 and 1 and for few rows.

    `successes` may have halves (ties) or other parts in [0, 1] a row: the variance of such rows is at most that of
    0/1 rows of the same mean, so the interval is then at least as wide as it has to be. (`scipy.stats.binomtest` has
    the same interval for whole successes only.)
    """
    if count == 0:
        return Estimate(None, None, None, 0)
    share = successes / count
    return _finite(share, *wilson_bounds(share, count), count)


def wilson_bounds(share: float, count: float) -> tuple[float, float]:
    """Return both ends of Wilson's interval of a `share` of `count` rows, which need not be a whole number."""
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    # At 0 and 1 the bound is the share itself; rounding would put it beside.
    return 0.0 if share == 0 else max(0.0, centre - half), 1.0 if share == 1 else min(1.0, centre + half)


def student(values: Sequence[float], *, comparisons: int = 1) -> Estimate:
    """Return the t interval of a mean: mean ± t(n - 1) s / sqrt(n), s with n - 1.

    comparisons: so many intervals are looked at together, and all of them hold their means 95 times in a hundred
    (Bonferroni: each leaves out its own with 5 % / comparisons).
    """
    count = len(values)
    if count == 0:
        return Estimate(None, None, None, 0)
    mean = fmean(values)
    if count == 1:
        return _finite(mean, -math.inf, math.inf, 1)
    half = t_quantile(1 - (1 - LEVEL) / (2 * comparisons), count - 1) * stdev(values, mean) / math.sqrt(count)
    return _finite(mean, mean - half, mean + half, count)


def mean_with_interval(values: Sequence[float]) -> Estimate:
    """Return Wilson's interval where every value is 0 or 1, else Student's.

    That one has no width where all values are equal, which is not certainty: there the interval has no bounds.
    """
    if values and all(value in (0.0, 1.0) for value in values):
        return wilson(sum(values), len(values))
    if values and min(values) == max(values):
        return _finite(values[0], -math.inf, math.inf, len(values))
    return student(values)


def _finite(mean: float, low: float, high: float, count: int) -> Estimate:
    return Estimate(finite_or_none(mean), finite_or_none(low), finite_or_none(high), count)


def t_quantile(probability: float, degrees: int) -> float:
    """Return the value below which Student's t with whole `degrees` of freedom lies with `probability` (above a
    half).
    """
    from scipy.special import stdtrit  # scipy.stats' `t.ppf` without the second that scipy.stats takes to import

    return float(stdtrit(degrees, probability))


def pass_at_k(num_samples: int, num_right: int, k: int) -> float:
    """Return the probability that of k samples drawn without putting back one is right: 1 - C(n-c, k) / C(n, k).

    Unbiased for k fresh attempts; 1 - (1 - c/n)^k is not. Raises ValueError unless 1 <= k <= n and 0 <= c <= n.
    """
    if not (1 <= k <= num_samples and 0 <= num_right <= num_samples):
        raise ValueError(f"pass@{k} of {num_right} right ones in {num_samples}")
    return 1.0 - math.comb(num_samples - num_right, k) / math.comb(num_samples, k)


def attempt_counts(num_samples: int) -> list[int]:
    """Return the k for which pass@k is reported: 1, 2, 4, ... and the number of samples itself."""
    return sorted({num_samples, *(2**power for power in range(num_samples.bit_length()))})


def majority(answers: Sequence[Hashable], is_right: Sequence[float]) -> float:
    """Return what the most frequent answer is worth: the mean of `is_right` over its samples, over all of them in a
    tie.
    """
    counts = Counter(answers)
    most = max(counts.values())
    values = [right for answer, right in zip(answers, is_right, strict=True) if counts[answer] == most]
    return fmean(values)
