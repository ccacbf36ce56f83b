"""Estimate a setting's value from its seeds: a mean with Student's interval, or the interquartile mean.

The interquartile mean and its stratified bootstrap follow Agarwal et al., Deep Reinforcement Learning at the Edge of
the Statistical Precipice (arXiv 2108.13264), section 4.3: runs are drawn with replacement within each stratum, and the
interval is the percentile one. The random numbers are the same in every call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlhf_cli.numerics.intervals import LEVEL, Estimate, student

MEAN, IQM = "mean", "iqm"
ESTIMATORS = (MEAN, IQM)
ENOUGH_FOR_BOOTSTRAP = 10
"""Below this many seeds, the coverage of the percentile bootstrap is clearly too low: scripts/bench/verdicts.py."""

_TRIMMED = 0.25
_DRAWS = 5000


def estimate(values: Sequence[float], estimator: str = MEAN) -> Estimate:
    """Return the estimate over seeds, ignoring values that are not finite.

    One seed has no interval, because its variance is unknown. Equal values have no interval either: three identical
    seeds are not certainty.
    """
    kept = [value for value in values if math.isfinite(value)]
    if estimator == IQM:
        return interquartile([kept]) if kept else Estimate(None, None, None, 0)
    found = student(kept)
    if kept and min(kept) == max(kept):
        return Estimate(kept[0], None, None, len(kept))
    return found


def interquartile(strata: Sequence[Sequence[float]], *, draws: int = _DRAWS, seed: int = 0) -> Estimate:
    """Return the mean of the middle half of all values, with a bootstrap that draws seeds within each stratum."""
    arrays = [np.asarray(stratum) for stratum in strata]
    together = np.concatenate(arrays)
    middle = float(_trimmed(together[None, :])[0])
    if min(map(len, arrays)) < 2 or together.min() == together.max():
        return Estimate(middle, None, None, len(together))
    random = np.random.default_rng(seed)
    drawn = [array[random.integers(len(array), size=(draws, len(array)))] for array in arrays]
    low, high = np.percentile(_trimmed(np.concatenate(drawn, axis=1)), [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return Estimate(middle, float(low), float(high), len(together))


def _trimmed(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each row's mean without its lowest and highest quarter, rounded down, as scipy.stats.trim_mean."""
    cut = int(_TRIMMED * rows.shape[1])
    mean: NDArray[np.float64] = np.sort(rows)[:, cut : rows.shape[1] - cut].mean(axis=1)
    return mean
