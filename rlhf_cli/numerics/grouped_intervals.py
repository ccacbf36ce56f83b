"""Compute intervals for means of grouped rows, such as several answers per prompt. Plain floats, no torch.

Rows of a group are not independent, so an interval that counts rows is too narrow. The variance of the mean is computed
over groups (Taylor linearisation of a ratio of sums; Cochran 1977, Sampling Techniques, 11.7): with C groups, n rows
and mean m
    V = C / (C - 1)  sum over groups (sum of (x - m) over the group)^2 / n^2

This equals s^2 / n if every row is its own group. If all rows are in one group, they are counted as rows: the interval
is then about that group only. All intervals are two-sided, of 95 %.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import sqrt
from statistics import NormalDist, fmean

from rlhf_cli.numerics.intervals import LEVEL, Estimate, student, t_quantile, wilson, wilson_bounds


def student_of_groups(values: Sequence[float], groups: Sequence[Hashable]) -> Estimate:
    """Return the mean with m ± t(C - 1) sqrt(V). `groups` is the group of each value."""
    count = len(set(groups))
    if count in (1, len(values)):
        return student(values)
    mean = fmean(values)
    half = t_quantile((1 + LEVEL) / 2, count - 1) * sqrt(_variance(values, groups))
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
    return count / (count - 1) * sum(one * one for one in deviations.values()) / len(values) ** 2
