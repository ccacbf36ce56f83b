"""Intervals against published figures and closed forms; pass@k and maj@k against counting every draw."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from statistics import fmean

import pytest

from rlhf_cli.numerics.intervals import (
    Estimate,
    attempt_counts,
    majority,
    mean_with_interval,
    pass_at_k,
    student,
    t_quantile,
    wilson,
)


def test_wilson_solves_its_own_equation() -> None:
    """The bounds are the p with |share - p| = z sqrt(p (1 - p) / n): Wilson's definition."""
    z = 1.959963984540054
    for successes, count in ((1, 10), (5, 9), (81, 263), (0.5, 3)):
        estimate = wilson(successes, count)
        for bound in (estimate.low, estimate.high):
            assert abs(estimate.mean - bound) == pytest.approx(z * math.sqrt(bound * (1 - bound) / count), abs=1e-12)


def test_wilson_as_published() -> None:
    """Newcombe (1998, Stat. Med. 17:857), table I, method 3."""
    for successes, count, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (1, 29, 0.0061, 0.1718)):
        estimate = wilson(successes, count)
        assert (estimate.low, estimate.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))
    estimate = wilson(0, 20)
    assert (estimate.low, estimate.high) == (0.0, pytest.approx(0.1611, abs=5e-5))
    assert wilson(20, 20).high == 1.0


@pytest.mark.parametrize(
    ("degrees", "table"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (30, 2.042), (120, 1.980)]
)
def test_t_as_in_the_tables(degrees: int, table: float) -> None:
    assert t_quantile(0.975, degrees) == pytest.approx(table, abs=6e-4)


def test_t_in_closed_form() -> None:
    """One degree of freedom is Cauchy's distribution; two have t = (2p-1) sqrt(2 / (1 - (2p-1)²))."""
    for p in (0.6, 0.9, 0.975, 0.999):
        assert t_quantile(p, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=1e-9)
        a = 2 * p - 1
        assert t_quantile(p, 2) == pytest.approx(a * math.sqrt(2 / (1 - a * a)), rel=1e-9)


def test_student_of_several_that_are_looked_at_together() -> None:
    """Bonferroni: five intervals of 99 % each; t(2) = 9.9248 in tables of its 0.995 quantile, s of 1, 2, 3 is 1."""
    estimate = student([1.0, 2.0, 3.0], comparisons=5)
    half = 9.92484 / math.sqrt(3)
    assert (estimate.mean, estimate.low, estimate.high) == pytest.approx((2.0, 2 - half, 2 + half), abs=1e-4)


def test_student_by_hand() -> None:
    """1, 2, 3: mean 2, s = 1, t(2) = 4.3027, half width 4.3027 / sqrt(3) = 2.4841."""
    estimate = student([1.0, 2.0, 3.0])
    assert (estimate.mean, estimate.low, estimate.high) == pytest.approx((2.0, 2 - 2.48414, 2 + 2.48414), abs=1e-4)


def test_one_value_tells_nothing_and_none_even_less() -> None:
    assert student([4.0]) == Estimate(4.0, None, None, 1)
    assert wilson(0, 0) == student([]) == Estimate(None, None, None, 0)


def test_values_of_0_and_1_get_wilsons_interval() -> None:
    assert mean_with_interval([1.0, 1.0, 1.0]) == wilson(3, 3)
    assert mean_with_interval([1.0, 0.5]) == student([1.0, 0.5])


def test_equal_values_are_no_certainty() -> None:
    assert mean_with_interval([0.5, 0.5, 0.5]) == Estimate(0.5, None, None, 3)


@pytest.mark.parametrize("right", range(6))
@pytest.mark.parametrize("k", range(1, 6))
def test_pass_at_k_counts_every_draw(right: int, k: int) -> None:
    draws = list(itertools.combinations([1] * right + [0] * (5 - right), k))
    assert pass_at_k(5, right, k) == pytest.approx(float(Fraction(sum(map(any, draws)), len(draws))))


def test_pass_at_k_is_unbiased_and_its_plug_in_is_not() -> None:
    """Over all outcomes of 4 attempts that succeed with 0.3: the mean of pass@2 is 1 - 0.7²."""
    chance, exact, plug_in = 0.3, 0.0, 0.0
    for outcome in itertools.product((0, 1), repeat=4):
        weight = math.prod(chance if right else 1 - chance for right in outcome)
        exact += weight * pass_at_k(4, sum(outcome), 2)
        plug_in += weight * (1 - (1 - fmean(outcome)) ** 2)
    assert exact == pytest.approx(1 - 0.7**2)
    assert abs(plug_in - (1 - 0.7**2)) > 0.02


@pytest.mark.parametrize(("count", "right", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 1), (4, -1, 1)])
def test_pass_at_k_of_what_there_is_not(count: int, right: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k} of {right} right ones in {count}"):
        pass_at_k(count, right, k)


@pytest.mark.parametrize(
    ("samples", "counts"),
    [
        (1, [1]),
        (2, [1, 2]),
        (3, [1, 2, 3]),
        (6, [1, 2, 4, 6]),
        (7, [1, 2, 4, 7]),
        (8, [1, 2, 4, 8]),
        (9, [1, 2, 4, 8, 9]),
    ],
)
def test_attempts_that_are_reported(samples: int, counts: list[int]) -> None:
    assert attempt_counts(samples) == counts


def test_majority() -> None:
    assert majority(["7", "8", "7"], [1.0, 0.0, 1.0]) == 1.0
    assert majority(["7", "8", "8"], [1.0, 0.0, 0.0]) == 0.0
    assert majority(["7", "8", "7", "8", "9"], [1.0, 0.0, 1.0, 0.0, 0.0]) == 0.5  # a tie: by lot
