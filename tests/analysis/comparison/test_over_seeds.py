"""What a setting is worth by its seeds, against scipy and against rliable's formulas (arXiv 2108.13264)."""

from __future__ import annotations

import numpy as np
import pytest

from rlhf_cli.analysis.comparison.settings import IQM, estimate, interquartile

FIVE = [0.61, 0.58, 0.70, 0.64, 0.66]


def test_students_interval_is_scipys() -> None:
    """scipy.stats.t.interval(0.95, 4, mean, sem): mean 0.638, s = 0.04604, 2.7764 s / sqrt(5) = 0.05717."""
    from scipy import stats

    found = estimate(FIVE)
    low, high = stats.t.interval(0.95, 4, np.mean(FIVE), stats.sem(FIVE))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.mean == pytest.approx(0.638)
    assert found.high == pytest.approx(0.638 + 0.05717, abs=1e-5)


@pytest.mark.parametrize("estimator", ["mean", IQM])
def test_one_seed_has_no_interval_and_not_one_of_no_width(estimator: str) -> None:
    found = estimate([0.5], estimator)
    assert (found.mean, found.low, found.high, found.count) == (0.5, None, None, 1)


@pytest.mark.parametrize("estimator", ["mean", IQM])
def test_equal_seeds_are_no_certainty(estimator: str) -> None:
    found = estimate([0.5] * 3, estimator)
    assert (found.mean, found.low, found.high) == (0.5, None, None)


def test_what_is_no_number_is_left_out() -> None:
    assert estimate([*FIVE, float("nan")]) == estimate(FIVE)
    assert estimate([float("nan")]).mean is None


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 13])
def test_the_interquartile_mean_is_rliables(count: int) -> None:
    """rliable's aggregate_iqm is scipy.stats.trim_mean(scores, proportiontocut=0.25, axis=None)."""
    from scipy import stats

    values = list(np.random.default_rng(count).normal(size=count))
    assert interquartile(values).mean == pytest.approx(stats.trim_mean(values, 0.25))


def test_its_bootstrap_is_scipys_percentile_bootstrap() -> None:
    """With 20,000 draws each the ends of the two agree within what drawing leaves, a hundredth of a deviation."""
    from scipy import stats

    values = np.random.default_rng(3).normal(size=10)
    theirs = stats.bootstrap(
        (values,),
        lambda sample, axis: stats.trim_mean(sample, 0.25, axis=axis),
        n_resamples=20_000,
        method="percentile",
        rng=np.random.default_rng(1),
    ).confidence_interval
    ours = interquartile(list(values), draws=20_000)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.03)
    assert ours == interquartile(list(values), draws=20_000)


def test_its_ends_are_the_percentiles_of_5000_draws() -> None:
    """By its definition, with the same random numbers: the 2.5th and the 97.5th of the trimmed means."""
    from scipy import stats

    values = np.random.default_rng(5).normal(size=12)
    random = np.random.default_rng(0)
    drawn = values[random.integers(12, size=(5000, 12))]
    low, high = np.percentile(stats.trim_mean(drawn, 0.25, axis=1), [2.5, 97.5])
    found = estimate([*map(float, values), float("inf")], IQM)
    assert (found.mean, found.low, found.high) == pytest.approx((stats.trim_mean(values, 0.25), low, high))
    assert found.count == 12


def test_two_seeds_are_enough_to_draw_from() -> None:
    """Of 0 and 1 a draw has the mean 0, 1/2 or 1, and the first and the last a quarter of the time each."""
    found = interquartile([0.0, 1.0])
    assert (found.mean, found.low, found.high, found.count) == (0.5, 0.0, 1.0, 2)
    assert interquartile([1.0]).low is None
    assert estimate([float("nan")], IQM) == estimate([])
