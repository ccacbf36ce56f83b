"""Published estimators that TRL 1.16 lacks, as functions for `advantages.fn`; conf/advantages has one file for each.

`user_function.py` lists the arguments. A function of your own looks like these.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import comb, sqrt

import numpy

from rlhf_cli.algorithms.user_function import Array

_EPS = 1e-8


def maxrl(totals: Array, groups: Array) -> Array:
    """Return MaxRL's (R - mean of the group) / mean of the group (arXiv 2602.02710); for rewards of 0 or more.

    The gradient approaches that of the log of the success rate: a rare success counts more. A group without a success
    gets 0.
    """
    advantages = numpy.zeros_like(totals)
    for group in numpy.unique(groups):
        rows = (groups == group) & ~numpy.isnan(totals)
        mean = totals[rows].mean() if rows.any() else 0.0
        if mean > 0:
            advantages[rows] = (totals[rows] - mean) / mean
    return advantages


def reinforce_plus_plus(
    totals: Array, rewards: Mapping[str, Array], weights: Mapping[str, float], counted: Array
) -> tuple[Array, dict[str, Array]]:
    """Return REINFORCE++'s (R - mean of the round) / deviation of the round (arXiv 2501.03262), and each reward's part.

    It compares with all prompts instead of a group. It keeps no running baseline, so a resumed run needs no state.
    """
    deviation = totals[counted].std() + _EPS if counted.any() else 1.0

    def scaled(values: Array) -> Array:
        centred: Array = values - values[counted].mean()
        return centred / deviation

    weighted = {name: weights[name] * numpy.nan_to_num(scores) for name, scores in rewards.items()}
    return scaled(totals), {name: scaled(values) for name, values in weighted.items()}


def pass_at_k(totals: Array, groups: Array, k: int = 4, threshold: float = 1.0) -> Array:
    """Return the advantages of the pass@k objective (arXiv 2508.10751, analytical derivation).

    A row is right if its total is at least `threshold`. Of a group of n rows with w wrong ones, all sets of k rows are
    scored by whether one of them is right; a row's advantage is the mean normalised score of the sets that hold it.
    """
    advantages = numpy.zeros_like(totals)
    for group in numpy.unique(groups):
        rows = (groups == group) & ~numpy.isnan(totals)
        right = rows & (totals >= threshold)
        n, wrong = int(rows.sum()), int(rows.sum() - right.sum())
        mean = 1 - comb(wrong, k) / comb(n, k) if n >= k else 0.0
        if 0 < mean < 1:
            deviation = sqrt(mean * (1 - mean))
            advantages[rows] = (1 - comb(wrong - 1, k - 1) / comb(n - 1, k - 1) - mean) / deviation
            advantages[right] = (1 - mean) / deviation
    return advantages
