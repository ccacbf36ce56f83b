"""Distinguish a trend from noise in an autocorrelated curve.

A line is fitted by least squares. The residuals from a parabola, which may bend like a learning curve, give the size of
the noise and its memory: of n values whose residuals have the lag-one autocorrelation r1, only

    n_e = n (1 - r1) / (1 + r1)

count (Santer et al. 2000, Journal of Geophysical Research 105, equations 3 to 6), in the variance of the residuals and
in the degrees of freedom of Student's t, n_e - 3 for a parabola. Fitting biases r1 towards 0, by about (1 + 3 r1) / n
(Kendall 1954, Biometrika 41, for an AR(1) process), which is corrected.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rlhf_cli.diagnosis.logged import Curve

_LONGEST_MEMORY = 0.95
_FEWEST = 4.0
"""Minimum number of effective values: with fewer, Student's t has too few degrees of freedom."""


@dataclass(frozen=True)
class Trend:
    """A line through a curve.

    `change` is from its first to its last step, `start` the line's value at the first; `error` is the standard error of
    the change and `freedom` its degrees of freedom.
    """

    start: float
    change: float
    error: float
    freedom: float

    @property
    def end(self) -> float:
        """Return the line's value at the last step."""
        return self.start + self.change

    def interval(self, alpha: float) -> tuple[float, float]:
        """Return the two-sided confidence interval of the change with level 1 - `alpha`."""
        reach = _quantile(round(self.freedom), alpha / 2) * self.error
        return self.change - reach, self.change + reach

    def rises(self, alpha: float) -> bool:
        """Return whether the change is significantly above 0, one-sided at level `alpha`."""
        return self.change > _quantile(round(self.freedom), alpha) * self.error

    def falls(self, alpha: float) -> bool:
        """Return whether the change is significantly below 0, one-sided at level `alpha`."""
        return -self.change > _quantile(round(self.freedom), alpha) * self.error


def trend(curve: Curve) -> Trend | None:
    """Return the line through a curve, or None if too few of its values are independent."""
    n = len(curve)
    if n <= _FEWEST:
        return None
    x = curve.steps - curve.steps.mean()
    y = curve.values - curve.values.mean()
    spread = float(x @ x)
    if spread == 0.0:
        return None
    slope = float(x @ y) / spread
    residuals = y - slope * x
    length = float(curve.steps[-1] - curve.steps[0])
    start = curve.mean + slope * float(x[0])
    # The part of a parabola that is neither constant nor straight.
    bend = x * x - spread / n
    bend -= x * (float(x @ bend) / spread)
    if (size := float(bend @ bend)) > 0.0:
        residuals = residuals - bend * (float(bend @ residuals) / size)
    squares = float(residuals @ residuals)
    if squares <= 1e-18 * max(1.0, float(curve.values @ curve.values)):  # no noise except rounding
        return Trend(start, slope * length, 0.0, n - 3.0)
    memory = max(0.0, float(residuals[1:] @ residuals[:-1]) / squares)
    memory = min(_LONGEST_MEMORY, memory + (1.0 + 3.0 * memory) / n) if memory else 0.0
    effective = n * (1.0 - memory) / (1.0 + memory)
    if effective < _FEWEST:
        return None
    freedom = max(1.0, effective - 3.0)
    return Trend(start, slope * length, math.sqrt(squares / freedom / spread) * length, freedom)


@lru_cache(maxsize=1024)
def _quantile(freedom: int, alpha: float) -> float:
    """Return the value that Student's t with `freedom` degrees of freedom exceeds with probability `alpha`."""
    from scipy.special import stdtrit  # takes half a second if not yet imported

    return float(stdtrit(max(1, freedom), 1.0 - alpha))


def means(curve: Curve, parts: int) -> list[float]:
    """Return the means of `parts` consecutive parts of a curve, or of all values if there are fewer."""
    return [float(part.mean()) for part in np.array_split(curve.values, min(parts, len(curve)))] if len(curve) else []
