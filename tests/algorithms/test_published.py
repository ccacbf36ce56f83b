"""Published estimators against values worked by hand and against loops over their papers' formulas."""

from __future__ import annotations

import itertools
import statistics

import numpy
import pytest

from rlhf_cli.algorithms.published import maxrl, pass_at_k, reinforce_plus_plus

NAN = float("nan")
TOTALS = numpy.array([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, NAN, 0.0, 0.0, 0.0, 0.0, 0.0])
GROUPS = numpy.repeat([0, 1, 2], 4)
COUNTED = ~numpy.isnan(TOTALS)


def test_maxrl_divides_by_the_success_rate() -> None:
    """Means 1/4, 2/3 and 0: (1 - 1/4) / (1/4) = 3 for the only success, (1 - 2/3) / (2/3) = 1/2 for each of two."""
    expected = [3, -1, -1, -1, 0.5, 0.5, 0, -1, 0, 0, 0, 0]
    assert maxrl(TOTALS, GROUPS).tolist() == pytest.approx(expected)


def test_reinforce_plus_plus_standardises_over_the_round() -> None:
    rewards = {"a": numpy.where(COUNTED, 2 * TOTALS, NAN), "b": numpy.where(COUNTED, -TOTALS, NAN)}
    found, parts = reinforce_plus_plus(TOTALS, rewards, {"a": 1.0, "b": 1.0}, COUNTED)
    there = TOTALS[COUNTED].tolist()
    mean, deviation = statistics.fmean(there), statistics.pstdev(there)
    assert found[COUNTED].tolist() == pytest.approx([(total - mean) / deviation for total in there])
    assert (parts["a"] + parts["b"])[COUNTED].tolist() == pytest.approx(found[COUNTED].tolist())
    assert parts["a"][COUNTED].tolist() == pytest.approx([2 * value for value in found[COUNTED].tolist()])


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("right", range(6))
def test_pass_at_k_is_the_mean_over_all_sets_of_k_rows(right: int, k: int) -> None:
    """Score every set by its best row, standardise over the sets, and average over those that hold a row."""
    totals = numpy.array([1.0] * right + [0.2] * (5 - right))
    sets = list(itertools.combinations(range(5), k))
    scores = [float(any(totals[row] >= 1 for row in members)) for members in sets]
    mean, deviation = statistics.fmean(scores), statistics.pstdev(scores)
    expected = [0.0] * 5
    for row in range(5 if deviation else 0):
        held = [score for score, members in zip(scores, sets, strict=True) if row in members]
        expected[row] = (statistics.fmean(held) - mean) / deviation
    assert pass_at_k(totals, numpy.zeros(5), k=k).tolist() == pytest.approx(expected)


def test_pass_at_k_by_hand() -> None:
    """Two of four are right, k = 2: 5 of 6 pairs hold one, deviation sqrt(5)/6; right (1/6) / that = 1/sqrt(5); a wrong
    row is in three pairs, one of them all wrong: (2/3 - 5/6) / that = -1/sqrt(5).
    """
    found = pass_at_k(numpy.array([1.0, 1.0, 0.0, 0.0, NAN]), numpy.zeros(5), k=2)
    root = 5**-0.5
    assert found.tolist() == pytest.approx([root, root, -root, -root, 0.0])
    rare = numpy.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    assert pass_at_k(rare, numpy.zeros(6)).tolist() == pass_at_k(rare, numpy.zeros(6), k=4).tolist()
