"""A setting's mean and differences seed by seed: by hand, by scipy's t test, and by published sample sizes."""

from __future__ import annotations

import math
from statistics import stdev

import pytest

from rlhf_cli.analysis.comparison.measures import RunMeasure
from rlhf_cli.analysis.comparison.settings import estimate
from rlhf_cli.analysis.comparison.verdicts import (
    BETTER,
    EQUAL,
    IMPOSSIBLE,
    UNDECIDED,
    WORSE,
    MeasureVerdict,
    paired_difference,
    pairs_of,
    power_of,
    seeds_needed,
)

A = {"0": 0.50, "1": 0.60, "2": 0.70, "3": 0.55}
B = {"0": 0.54, "1": 0.65, "2": 0.73, "3": 0.60}
"""Differences 0.04, 0.05, 0.03, 0.05: mean 0.0425, s = sqrt(0.000275 / 3) = 0.0095743."""
BOTH = {"a": A, "b": B}


def test_by_hand() -> None:
    """t(3) of 95 % is 3.18245: 0.0425 ± 3.18245 * 0.0095743 / 2 = 0.0425 ± 0.015235."""
    found = paired_difference(BOTH, "b", "a", sign=1, comparisons=1)
    assert found.difference.mean == pytest.approx(0.0425)
    assert found.difference.low == pytest.approx(0.0425 - 0.015235, abs=1e-6)
    assert found.difference.high == pytest.approx(0.0425 + 0.015235, abs=1e-6)
    assert (found.outcome, found.seeds) == (BETTER, ("0", "1", "2", "3"))
    assert found.effect == pytest.approx(0.0425 / 0.0095743, rel=1e-4)


def test_the_p_value_is_scipys() -> None:
    from scipy import stats

    found = paired_difference(BOTH, "b", "a", sign=1, comparisons=4)
    p = stats.ttest_rel(list(B.values()), list(A.values())).pvalue
    assert found.p_value == pytest.approx(p)
    assert found.p_adjusted == pytest.approx(4 * p)


def test_negative_control_an_unpaired_test_sees_no_difference() -> None:
    """The seeds vary nine times as much as the differences, in both means."""
    from scipy import stats

    assert stats.ttest_ind(list(B.values()), list(A.values())).pvalue > 0.4


@pytest.mark.parametrize("comparisons", [1, 2, 5, 9, 10, 20, 30, 100])
@pytest.mark.parametrize("scale", [0.2, 1.0, 3.0])
def test_decision_and_interval_never_contradict_each_other(comparisons: int, scale: float) -> None:
    """A difference is decided if its interval excludes zero, and exactly then p times m is below 5 %."""
    there = {seed: value + scale * (B[seed] - value) - (1 - scale) * 0.02 for seed, value in A.items()}
    found = paired_difference({"a": A, "b": there}, "b", "a", sign=1, comparisons=comparisons)
    low, high = found.difference.low, found.difference.high
    assert low is not None
    assert high is not None
    assert found.p_adjusted is not None
    assert (found.outcome in (BETTER, WORSE)) == (not low <= 0 <= high) == (found.p_adjusted < 0.05)


def test_where_less_is_better_more_is_worse() -> None:
    assert paired_difference(BOTH, "b", "a", sign=-1, comparisons=1).outcome == WORSE
    assert paired_difference(BOTH, "a", "b", sign=-1, comparisons=1).outcome == BETTER


def test_correction_makes_the_interval_wider_and_the_verdict_harder() -> None:
    """p is 0.003, which 20 comparisons raise above 5 %; a probability is at most 1."""
    assert paired_difference(BOTH, "b", "a", sign=1, comparisons=20).outcome == UNDECIDED
    assert paired_difference(BOTH, "b", "a", sign=1, comparisons=1000).p_adjusted == 1.0


def test_only_common_seeds_that_are_numbers_count() -> None:
    other = {"0": 0.54, "1": math.nan, "2": 0.73, "9": 5.0}
    found = paired_difference({"a": A, "b": other}, "b", "a", sign=1, comparisons=1)
    assert found.seeds == ("0", "2")


@pytest.mark.parametrize("common", [{}, {"0": 0.9}, {"7": 0.9, "8": 0.8}], ids=["nothing", "one seed", "other seeds"])
def test_one_difference_has_no_interval_and_no_verdict(common: dict[str, float]) -> None:
    found = paired_difference({"a": A, "b": common}, "b", "a", sign=1, comparisons=1)
    assert found.outcome == IMPOSSIBLE
    assert found.difference.low is None
    assert found.seeds_needed is None
    assert found.difference.mean == (pytest.approx(0.4) if "0" in common else None)


def test_equal_differences_decide_nothing() -> None:
    """A deviation of zero would make an interval without width, and a verdict of any difference at all."""
    assert paired_difference({"a": A, "b": A}, "b", "a", sign=1, comparisons=1).outcome == EQUAL
    higher = dict.fromkeys(A, 0.25)
    lower = dict.fromkeys(A, 0.125)
    assert paired_difference({"a": lower, "b": higher}, "b", "a", sign=1, comparisons=1).outcome == IMPOSSIBLE


@pytest.mark.parametrize("size", [1.0, 1e5, -1e5, 2.0**16])
def test_rounding_of_equal_differences_is_no_deviation(size: float) -> None:
    """Differences of 0.1 deviate by the rounding of what they are differences of, which is at least 1e9 times less
    than they are: with a t of a billion they would be beyond any doubt. Around 2**16, where float64 numbers double
    their distance, the first difference is rounded in another way than the others.
    """
    here = {str(seed): size + 0.1 * seed for seed in range(6)}
    assert (size != 2.0**16) or 0 < stdev(value - (value - 0.1) for value in here.values()) < 1e-11
    for gap, outcome in ((0.1, IMPOSSIBLE), (-0.1, IMPOSSIBLE), (0.0, EQUAL)):
        there = {seed: value - gap for seed, value in here.items()}
        found = paired_difference({"a": there, "b": here}, "b", "a", sign=1, comparisons=1)
        assert (found.outcome, found.difference.low, found.effect) == (outcome, None, None)
        assert found.difference.mean == pytest.approx(gap)
    # Negative control: a deviation of a millionth is larger than rounding.
    there = {seed: value - 0.1 - 1e-6 * int(seed) for seed, value in here.items()}
    assert paired_difference({"a": there, "b": here}, "b", "a", sign=1, comparisons=1).outcome == BETTER


@pytest.mark.parametrize(("effect", "seeds"), [(0.2, 199), (0.5, 34), (0.8, 15)])
def test_sample_sizes_are_those_of_g_power(effect: float, seeds: int) -> None:
    """G*Power 3.1, t tests, difference between two dependent means, two tails, alpha 0.05, power 0.8 (Cohen's small,
    medium and large effect).
    """
    assert seeds_needed(effect) == seeds


def test_power_is_how_often_simulated_seeds_decide() -> None:
    """20,000 draws of 8 seeds with effect 1, three comparisons: the share whose p is below 5 % / 3."""
    import numpy as np
    from scipy import stats

    drawn = np.random.default_rng(0).normal(1.0, 1.0, size=(20_000, 8))
    share = float(np.mean(stats.ttest_1samp(drawn, 0.0, axis=1).pvalue < 0.05 / 3))
    assert power_of(1.0, 8, comparisons=3) == pytest.approx(share, abs=4 * math.sqrt(0.25 / 20_000))


@pytest.mark.parametrize(("effect", "seeds", "comparisons"), [(0.7, 2, 1), (-1.0, 5, 1), (0.5, 8, 6), (2.0, 3, 10)])
def test_power_is_that_of_scipy_stats(effect: float, seeds: int, comparisons: int) -> None:
    from scipy import stats

    critical = stats.t(seeds - 1).isf(0.05 / (2 * comparisons))
    expected = stats.nct(seeds - 1, abs(effect) * math.sqrt(seeds)).sf(critical)
    assert power_of(effect, seeds, comparisons=comparisons) == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize(("seeds", "comparisons"), [(7, 1), (10, 3), (20, 1), (50, 30)])
def test_a_huge_effect_is_always_seen(seeds: int, comparisons: int) -> None:
    """Far out SciPy's series for the noncentral t sometimes does not converge, and gives NaN."""
    effects = [5 * 1.005**step for step in range(600)]
    assert all(power_of(effect, seeds, comparisons=comparisons) > 0.9999 for effect in effects)


@pytest.mark.parametrize("comparisons", [1, 3, 12])
@pytest.mark.parametrize("effect", [0.1, 0.3, 0.7, 1.3, 2.5, 6.0, 15.0, 60.0, 1e4])
def test_the_number_of_seeds_is_the_smallest_with_enough_power(effect: float, comparisons: int) -> None:
    """One after another from two on, with scipy.stats' noncentral t: the first whose power is 80 %."""
    from scipy import stats

    def power(count: int) -> float:
        critical = stats.t.ppf(1 - 0.05 / (2 * comparisons), count - 1)
        # Far out the series gives NaN, where the noncentral t is nearly normal around its noncentrality.
        found = stats.nct.sf(critical, count - 1, effect * math.sqrt(count))
        return float(effect * math.sqrt(count) > critical if math.isnan(found) else found)

    least = next((count for count in range(2, 1001) if power(count) >= 0.8), None)
    assert seeds_needed(effect, comparisons=comparisons) == seeds_needed(-effect, comparisons=comparisons) == least


def test_a_tiny_effect_has_no_number_of_seeds() -> None:
    assert seeds_needed(0.0) is None
    assert seeds_needed(1e-4) is None


FIVE = [0.61, 0.58, 0.70, 0.64, 0.66]


def test_the_interval_of_a_setting_is_scipys() -> None:
    """scipy.stats.t.interval(0.95, 4, mean, sem): mean 0.638, s = 0.04604, 2.7764 s / sqrt(5) = 0.05717."""
    from scipy import stats

    found = estimate([*FIVE, math.nan])
    low, high = stats.t.interval(0.95, 4, math.fsum(FIVE) / 5, stats.sem(FIVE))
    assert (found.mean, found.low, found.high) == pytest.approx((0.638, low, high), abs=1e-12)
    assert found.high == pytest.approx(0.638 + 0.05717, abs=1e-5)


@pytest.mark.parametrize(("values", "mean"), [([0.5], 0.5), ([0.5] * 3, 0.5), ([math.nan], None)])
def test_one_seed_or_equal_seeds_are_no_certainty(values: list[float], mean: float | None) -> None:
    found = estimate(values)
    assert (found.mean, found.low, found.high) == (mean, None, None)


FAR = {"a": [0.1, 0.2, 0.3, 0.4], "b": [0.5, 0.61, 0.7, 0.79], "c": [0.9, 1.02, 1.1, 1.2]}
NEAR = {"a": [0.1, 0.2, 0.3, 0.4], "b": [0.5, 0.61, 0.7, 0.79], "c": [0.6, 0.5, 0.8, 0.7]}


def verdict(arms: dict[str, list[float]], *, sign: int = 1, baseline: str | None = None) -> MeasureVerdict:
    values = {name: {str(seed): one for seed, one in enumerate(numbers)} for name, numbers in arms.items()}
    pairs = pairs_of(list(arms), baseline)
    differences = tuple(
        paired_difference({one: values[one] for one in pair}, *pair, sign=sign or 1, comparisons=len(pairs))
        for pair in pairs
    )
    return MeasureVerdict(RunMeasure("m", "m", "reward", sign), "key", tuple(arms), baseline, differences, {}, "")


@pytest.mark.parametrize(
    ("arms", "sign", "baseline", "winner"),
    [
        (FAR, 1, None, "c"),
        (FAR, -1, None, "a"),
        (NEAR, 1, None, None),
        (FAR, 1, "a", None),
        ({"a": FAR["a"], "b": FAR["b"]}, 1, "a", "b"),
        ({"a": FAR["a"], "b": FAR["b"]}, -1, "a", "a"),
        ({"a": FAR["a"], "b": FAR["a"]}, 1, None, None),
        (FAR, 0, None, None),
    ],
    ids=[
        "best of three",
        "less is better",
        "a tie above",
        "not held together",
        "two",
        "two, less",
        "equal",
        "neither is better",
    ],
)
def test_the_winner(arms: dict[str, list[float]], sign: int, baseline: str | None, winner: str | None) -> None:
    assert verdict(arms, sign=sign, baseline=baseline).winner == winner
