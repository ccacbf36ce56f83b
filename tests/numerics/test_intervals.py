"""Intervals against published figures and closed forms; pass@k and maj@k against counting every draw."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest

from rlhf_cli.numerics.intervals import (
    Estimate,
    attempt_counts,
    majority,
    mean_with_interval,
    pass_at_k,
    student,
    student_of_groups,
    wilson,
    wilson_bounds,
    wilson_of_groups,
)


def test_wilson_solves_its_own_equation() -> None:
    """The bounds are the p with |share - p| = z sqrt(p (1 - p) / n): Wilson's definition."""
    z = 1.959963984540054
    for successes, count in ((1, 10), (5, 9), (81, 263), (0.5, 3)):
        estimate = wilson(successes, count)
        for bound in (estimate.low, estimate.high):
            assert abs(estimate.mean - bound) == pytest.approx(z * math.sqrt(bound * (1 - bound) / count), abs=1e-12)


def test_wilsons_bounds_stay_within_0_and_1_where_rounding_would_leave_them() -> None:
    """Without the limits the smallest is -5.6e-17."""
    shares = [digit * 10.0**-power for power in range(6, 16) for digit in (1, 3, 7)]
    bounds = [wilson_bounds(share, 1) for tiny in shares for share in (tiny, 1 - tiny)]
    assert all(low >= 0.0 and high <= 1.0 for low, high in bounds)


def test_wilson_as_published() -> None:
    """Newcombe (1998, Stat. Med. 17:857), table I, method 3."""
    published = ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (20, 20, 0.8389, 1.0))
    for successes, count, low, high in published:
        estimate = wilson(successes, count)
        assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=5e-5)
    assert {(wilson(0, count).low, wilson(count, count).high) for count in range(1, 100)} == {(0.0, 1.0)}


def test_student_of_several_that_are_looked_at_together() -> None:
    """Bonferroni: five intervals of 99 % each; t(2) = 9.9248 in tables of its 0.995 quantile, s of 1, 2, 3 is 1."""
    estimate = student([1.0, 2.0, 3.0], comparisons=5)
    half = 9.92484 / math.sqrt(3)
    assert (estimate.mean, estimate.low, estimate.high) == pytest.approx((2.0, 2 - half, 2 + half), abs=1e-4)


def test_a_mean_of_zeros_and_ones_is_a_proportion_and_any_other_is_students() -> None:
    assert mean_with_interval([0.0, 1.0, 1.0]) == wilson(2, 3)
    assert mean_with_interval([0.0, 1.0, 0.5]) == student([0.0, 1.0, 0.5])
    assert mean_with_interval([1.0, 1.0, 0.5], [1.0, 1.0, None, 1.0, 1.0, 0.0]) == wilson(2.5, 3)
    assert mean_with_interval([1.0, 1.0, 0.5], [1.0, 1.0, 0.5, 0.5]) == student([1.0, 1.0, 0.5])
    assert mean_with_interval([0.5, 0.5]) == Estimate(0.5, None, None, 2)
    assert mean_with_interval([]) == Estimate(None, None, None, 0)


def test_one_value_or_equal_ones_tell_nothing_and_none_even_less() -> None:
    assert student([4.0]) == Estimate(4.0, None, None, 1)
    assert student([0.1] * 3) == student_of_groups([0.1] * 3, "aab") == Estimate(0.1, None, None, 3)
    assert wilson(0, 0) == student([]) == Estimate(None, None, None, 0)


@pytest.mark.parametrize("right", range(6))
@pytest.mark.parametrize("k", range(1, 6))
def test_pass_at_k_counts_every_draw(right: int, k: int) -> None:
    draws = list(itertools.combinations([1] * right + [0] * (5 - right), k))
    assert pass_at_k(5, right, k) == pytest.approx(float(Fraction(sum(map(any, draws)), len(draws))))


@pytest.mark.parametrize(("count", "right", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 1), (4, -1, 1)])
def test_pass_at_k_of_what_there_is_not(count: int, right: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k} of {right} right ones in {count}"):
        pass_at_k(count, right, k)


@pytest.mark.parametrize(("samples", "counts"), [(1, [1]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (9, [1, 2, 4, 8, 9])])
def test_attempts_that_are_reported(samples: int, counts: list[int]) -> None:
    assert attempt_counts(samples) == counts


def test_majority() -> None:
    assert majority(["7", "8", "7"], [1.0, 0.0, 1.0]) == 1.0
    assert majority(["7", "8", "8"], [1.0, 0.0, 0.0]) == 0.0
    assert majority(["7", "8", "7", "8", "9"], [1.0, 0.0, 1.0, 0.0, 0.0]) == 0.5  # a tie: by lot


VALUES = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0]


def test_groups_of_one_row_are_no_groups_and_one_group_is_the_world_that_is_asked_about() -> None:
    assert wilson_of_groups(VALUES, range(6)) == wilson_of_groups(VALUES, "aaaaaa") == wilson(4, 6)
    assert student_of_groups(VALUES, range(6)) == student_of_groups(VALUES, "aaaaaa") == student(VALUES)


def test_a_mean_by_hand() -> None:
    """1 2 | 3 | 6 6: m = 3.6; sums of deviations -4.2, -0.6, 4.8; V = 3/2 (17.64 + 0.36 + 23.04) / 25 = 2.4624."""
    found = student_of_groups([1.0, 2.0, 3.0, 6.0, 6.0], ["a", "a", "b", "c", "c"])
    half = 4.302653 * math.sqrt(2.4624)  # t(2)
    assert (found.mean, found.low, found.high, found.count) == pytest.approx((3.6, 3.6 - half, 3.6 + half, 5), rel=1e-6)


def test_a_share_by_hand() -> None:
    """1 1 | 1 0 | 0 0 | 1 1: m = 5/8; sums of deviations .75, -.25, -1.25, .75; V = 4/3 (2.75) / 64 = 0.0572917.

    The eight rows are worth (15/64) / V = 4.0909 of them, times (1.959964 / 3.182446)^2, t(3): 1.5517.
    """
    found = wilson_of_groups([1, 1, 1, 0, 0, 0, 1, 1], "aabbccdd")
    worth, z = 1.5516855, 1.959964
    centre = (0.625 + z * z / (2 * worth)) / (1 + z * z / worth)
    half = z / (1 + z * z / worth) * math.sqrt(0.625 * 0.375 / worth + z * z / (4 * worth * worth))
    assert (found.mean, found.low, found.high) == pytest.approx((0.625, centre - half, centre + half), rel=1e-4)
    assert found.count == 8


def test_all_right_of_few_prompts_is_worth_the_prompts() -> None:
    found, of_prompts = wilson_of_groups([1.0] * 12, "aaaabbbbcccc"), wilson(3, 3)
    assert (found.low, found.high) == pytest.approx((of_prompts.low, of_prompts.high), rel=1e-12)


def test_rows_of_a_group_that_differ_more_than_chance_are_worth_no_more_than_they_are() -> None:
    """One right a prompt: the share does not depend on the prompts, and V is 0, or nearly."""
    assert wilson_of_groups([1.0, 0.0] * 6, [row // 2 for row in range(12)]) == wilson(6, 12)
    assert wilson_of_groups([0.0, 0.0, 1.0] * 10, [row // 3 for row in range(30)]) == wilson(10, 30)
