"""Find the divisors of scores: deviations of a batch, a group or all scores so far. NumPy only: no torch is imported.

Shapes: N rows, the rows of a group consecutive. NaN means "does not apply".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy
from numpy.typing import NDArray

Array: TypeAlias = NDArray[numpy.float64]
"""Scores in float64, or in float32 as in a training."""
Normalize = Literal["none", "batch", "group", "running"]

_LEAST_DEVIATION = 1e-6
"""A column with a smaller deviation is constant: dividing would only amplify rounding errors, so it is not divided."""


@dataclass(frozen=True)
class RunningDeviation:
    """The unbiased (n - 1) deviation of all scores so far, by Welford's method for batches (Chan et al. 1979)."""

    count: float = 0.0
    mean: float = 0.0
    sum_of_squares: float = 0.0

    def updated(self, values: Array) -> RunningDeviation:
        """Return the state after adding the non-NaN entries of `values` (any shape)."""
        seen = values[~numpy.isnan(values)].astype(numpy.float64)
        if not seen.size:
            return self
        count, mean = float(seen.size), float(seen.mean())
        delta, total = mean - self.mean, self.count + count
        squares = float(((seen - mean) ** 2).sum()) + delta**2 * self.count * count / total
        return RunningDeviation(total, self.mean + delta * count / total, self.sum_of_squares + squares)

    @property
    def deviation(self) -> float:
        """Return the unbiased deviation, 0 for fewer than two scores."""
        return float((self.sum_of_squares / (self.count - 1)) ** 0.5) if self.count > 1 else 0.0


def divisors(
    values: Array, normalize: Normalize, num_generations: int | None, running: RunningDeviation | None
) -> Array:
    """Return the (N,) divisors of scores: the deviation of the batch, of the group, or of all scores so far.

    Normalising divides and never centres: a score of 0 still means "worth 0", so a row that a gate sets to 0 does not
    beat a poor one. A constant column is divided by 1. `running` is the state including this batch. The result is NaN
    if `running` is needed and unknown, and for a batch or group without `num_generations`, whose rows are independent.
    """
    if normalize == "none":
        return numpy.ones_like(values)
    if normalize == "running":
        found = numpy.full_like(values, numpy.nan if running is None else running.deviation)
    elif num_generations is None:
        found = numpy.full_like(values, numpy.nan)
    elif normalize == "batch":
        found = numpy.broadcast_to(deviation(values[None])[0], values.shape)
    else:
        found = deviation(values.reshape(-1, num_generations)).repeat(num_generations)
    return numpy.where(found <= _LEAST_DEVIATION, numpy.ones_like(values), found)


def deviation(values: Array) -> Array:
    """Return the unbiased deviation over the last dimension (kept), ignoring NaN; 0 for fewer than two values."""
    exact = values.astype(numpy.float64)  # the float32 mean of a constant 1000.1 is off by more than _LEAST_DEVIATION
    count = (~numpy.isnan(exact)).sum(axis=-1, keepdims=True)
    mean = numpy.nansum(exact, axis=-1, keepdims=True) / count.clip(min=1)
    squares = numpy.nansum((exact - mean) ** 2, axis=-1, keepdims=True)
    found: Array = numpy.sqrt(squares / (count - 1).clip(min=1)).astype(values.dtype)
    return found
