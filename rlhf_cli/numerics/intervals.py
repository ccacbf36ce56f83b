"""Compute intervals for proportions, means and pass@k, also for rows in groups.

All intervals are two-sided, of 95 %. Sources: Wilson (1927, JASA 22:209); pass@k: Chen et al., arXiv 2107.03374; maj@k:
Wang et al., arXiv 2203.11171. SciPy is imported only on use: checking a configuration does not need it.

Rows of a group are not independent. So the variance of the mean is computed over groups (Taylor linearisation of a
ratio of sums; Cochran 1977, Sampling Techniques, 11.7): with C groups, n rows and mean m
    V = C / (C - 1)  sum over groups (sum of (x - m) over the group)^2 / n^2

This equals s^2 / n if every row is its own group. Rows that are all in one group are counted as rows: the interval is
then about that group only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev

from rlhf_cli.text.json_values import finite_or_none

LEVEL = 0.95
"""Confidence level of all intervals."""


@dataclass(frozen=True)
class Estimate:
    """A mean of `count` values with its interval. Without values all are None, without a deviation both bounds are."""

    mean: float | None
    low: float | None
    high: float | None
    count: int


def wilson(successes: float, count: int) -> Estimate:
    """Return the score interval of a proportion (Wilson 1927), valid also at 0 and 1 and for few rows.

    `successes` may include halves (ties) or other fractions in [0, 1] per row, unlike `scipy.stats.binomtest`. The
    variance of such rows is at most that of 0/1 rows with the same mean, so the interval is wide enough.
    """
    if count == 0:
        return Estimate(None, None, None, 0)
    share = successes / count
    return Estimate(share, *wilson_bounds(share, count), count)


def wilson_bounds(share: float, count: float) -> tuple[float, float]:
    """Return the bounds of Wilson's interval of a `share` of `count` rows, which need not be a whole number."""
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    # At 0 and 1 the bound equals the share; rounding would shift it, and near them it would leave 0 to 1.
    return 0.0 if share == 0 else max(0.0, centre - half), 1.0 if share == 1 else min(1.0, centre + half)


def student(values: Sequence[float], *, comparisons: int = 1) -> Estimate:
    """Return the t interval of a mean: mean ± t(n - 1) s / sqrt(n), s with n - 1; equal values give no bounds.

    comparisons: how many intervals are read together; all hold with 95 % probability (Bonferroni: 5 % / comparisons).
    """
    count = len(values)
    if count == 0:
        return Estimate(None, None, None, 0)
    if count == 1 or min(values) == max(values):
        return Estimate(finite_or_none(values[0]), None, None, count)
    mean = fmean(values)
    half = t_quantile(1 - (1 - LEVEL) / (2 * comparisons), count - 1) * stdev(values, mean) / math.sqrt(count)
    low, high = finite_or_none(mean - half), finite_or_none(mean + half)
    return Estimate(finite_or_none(mean), low, high, count)


def mean_with_interval(means: Sequence[float], scores: Iterable[float | None] | None = None) -> Estimate:
    """Return Wilson's interval, which stays within 0 and 1, if every score is 0 or 1 (or None), else Student's.

    `means` are averages of some of the `scores` each, such as of the answers to a prompt; None: they are the scores.
    """
    is_share = means and all(score in (None, 0.0, 1.0) for score in (means if scores is None else scores))
    return wilson(min(math.fsum(means), len(means)), len(means)) if is_share else student(means)


def t_quantile(probability: float, degrees: int) -> float:
    """Return the quantile of Student's t for a `probability` above a half and whole `degrees` of freedom."""
    from scipy.special import stdtrit  # scipy.stats' `t.ppf` without the second that importing scipy.stats takes

    return float(stdtrit(degrees, probability))


def pass_at_k(num_samples: int, num_right: int, k: int) -> float:
    """Return the probability that one of k samples, drawn without replacement, is right: 1 - C(n-c, k) / C(n, k).

    It is unbiased for k fresh attempts; 1 - (1 - c/n)^k is not. Raise ValueError unless 1 <= k <= n and 0 <= c <= n.
    """
    if not (1 <= k <= num_samples and 0 <= num_right <= num_samples):
        raise ValueError(f"pass@{k} of {num_right} right ones in {num_samples}")
    return 1.0 - math.comb(num_samples - num_right, k) / math.comb(num_samples, k)


def attempt_counts(num_samples: int) -> list[int]:
    """Return the k for which pass@k is reported: 1, 2, 4, ... and the number of samples itself."""
    return sorted({num_samples, *(2**power for power in range(num_samples.bit_length()))})


def majority(answers: Sequence[Hashable], is_right: Sequence[float]) -> float:
    """Return the mean of `is_right` over the samples of the most frequent answer, or of all that tie for it."""
    counts = Counter(answers)
    most = max(counts.values())
    return fmean(right for answer, right in zip(answers, is_right, strict=True) if counts[answer] == most)


def student_of_groups(values: Sequence[float], groups: Sequence[Hashable]) -> Estimate:
    """Return the mean with m ± t(C - 1) sqrt(V). `groups` is the group of each value."""
    count = len(set(groups))
    if count in (1, len(values)) or min(values) == max(values):
        return student(values)
    mean = fmean(values)
    half = t_quantile((1 + LEVEL) / 2, count - 1) * math.sqrt(_variance(values, groups))
    return Estimate(mean, mean - half, mean + half, len(values))


def wilson_of_groups(values: Sequence[float], groups: Sequence[Hashable]) -> Estimate:
    """Return a share with Wilson's interval for the effective number of independent rows.

    `values` are in [0, 1], `groups` is the group of each. The effective number is m (1 - m) / V, times (z / t(C - 1))^2
    for a variance from few groups, and at most the number of rows (Korn and Graubard 1998, Survey Methodology 24:193,
    with Wilson's interval as in Dean and Pagano 2015, Journal of Survey Statistics and Methodology 3:484). If all
    values are equal V is not informative, and a group counts as one row.
    """
    count, num_rows = len(set(groups)), len(values)
    if count in (1, num_rows):
        return wilson(sum(values), num_rows)
    mean, variance = fmean(values), _variance(values, groups)
    quantile = (1 + LEVEL) / 2
    few = NormalDist().inv_cdf(quantile) / t_quantile(quantile, count - 1)
    worth = float(count)
    if min(values) != max(values):
        independent = mean * (1 - mean) * few * few
        worth = num_rows if independent >= num_rows * variance else independent / variance
    low, high = wilson_bounds(mean, worth)
    return Estimate(mean, low, high, num_rows)


def _variance(values: Sequence[float], groups: Sequence[Hashable]) -> float:
    mean = fmean(values)
    deviations: dict[Hashable, float] = {}
    for value, group in zip(values, groups, strict=True):
        deviations[group] = deviations.get(group, 0.0) + value - mean
    count = len(deviations)
    return count / (count - 1) * sum(value * value for value in deviations.values()) / len(values) ** 2
