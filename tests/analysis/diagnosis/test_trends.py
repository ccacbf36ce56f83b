"""A trend is told from noise: against scipy's own regression, for noise that remembers, and beside a bend."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rlhf_cli.analysis.diagnosis.logged import Curve, trend


def curve(values: np.ndarray) -> Curve:
    return Curve("x", np.arange(1.0, len(values) + 1), values)


def remembering(rho: float, n: int, rng: np.random.Generator) -> np.ndarray:
    """A stationary AR(1) process of deviation 1."""
    values = np.empty(n)
    values[0] = rng.standard_normal()
    for k in range(1, n):
        values[k] = rho * values[k - 1] + np.sqrt(1 - rho**2) * rng.standard_normal()
    return values


@pytest.mark.parametrize(("rho", "n", "most"), [(0.0, 30, 0.01), (0.3, 60, 0.015), (0.6, 120, 0.02), (0.9, 120, 0.04)])
def test_noise_alone_is_seldom_a_trend(rho: float, n: int, most: float) -> None:
    """At 0.005 on one side, 500 draws. Noise that remembers for ten steps of a hundred is told wrongly more often."""
    rng = np.random.default_rng(7)
    lines = [trend(curve(remembering(rho, n, rng))) for _ in range(500)]
    assert np.mean([line is not None and line.rises(0.005) for line in lines]) <= most


def test_negative_control_without_the_memory_it_would_be_one_in_six() -> None:
    """Ordinary regression takes noise that remembers for a trend: at rho 0.9, n 120, far above its 0.005."""
    rng = np.random.default_rng(7)
    lines = [stats.linregress(np.arange(120), remembering(0.9, 120, rng)) for _ in range(200)]
    assert np.mean([line.pvalue / 2 < 0.005 and line.slope > 0 for line in lines]) > 0.15


def test_a_curve_that_bends_is_told_as_risen() -> None:
    """It rises by 0.99 and stays up, under noise of 0.1: 30 points tell that in nearly all draws."""
    rng, x = np.random.default_rng(1), np.linspace(0, 1, 30)
    lines = [trend(curve(1 - np.exp(-5 * x) + 0.1 * rng.standard_normal(30))) for _ in range(100)]
    assert np.mean([line is not None and line.rises(0.005) for line in lines]) > 0.95


def test_the_interval_covers() -> None:
    rng = np.random.default_rng(11)
    lines = [trend(curve(0.05 * np.arange(40) + rng.standard_normal(40))) for _ in range(400)]
    inside = [line.interval(0.05)[0] <= 0.05 * 39 <= line.interval(0.05)[1] for line in lines if line is not None]
    assert 0.92 <= np.mean(inside) <= 0.99
