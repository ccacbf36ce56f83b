"""Test how often verdicts are right on simulated sweeps without any difference.

The limits are binomial: with 400 sweeps, a share of really 95 % lies below 91.5 % or above 98.2 % once in a thousand
times. The seeds are fixed.
"""

from __future__ import annotations

import math

import pytest

from tests.analysis.comparison.simulated_sweeps import FIVE_VALUES, THREE_VALUES, measure

_SWEEPS = 400


def limits(share: float) -> tuple[float, float]:
    half = 3.3 * math.sqrt(share * (1 - share) / _SWEEPS)
    return share - half, share + half


@pytest.fixture(scope="module")
def five_values():
    return measure(FIVE_VALUES, _SWEEPS)


def test_intervals_contain_the_truth_as_often_as_they_claim(five_values) -> None:
    low, high = limits(0.95)
    assert low <= five_values.mean <= high
    assert low <= five_values.difference <= high


def test_false_alarms_are_at_most_five_in_a_hundred(five_values) -> None:
    assert five_values.alarms <= limits(0.05)[1]


def test_intervals_and_verdicts_agree(five_values) -> None:
    assert five_values.together == pytest.approx(1 - five_values.alarms)


def test_control_without_correction_every_third_sweep_has_a_winner() -> None:
    """Ten comparisons of five values, each at 5 %."""
    rates = measure(FIVE_VALUES, _SWEEPS, corrected=False)
    assert rates.alarms > 0.2
    assert rates.together < 0.8


def test_control_unpaired_intervals_are_too_wide() -> None:
    """What seeds share is in both means and does not cancel, so hardly any difference could be found."""
    rates = measure(THREE_VALUES, _SWEEPS, paired=False)
    assert rates.difference > limits(0.95)[1]
