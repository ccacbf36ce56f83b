"""Verdicts over seeds: simulated sweeps, scipy's t test, published sample sizes, and their words."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import stdev

import numpy as np
import pytest
from scipy import stats

from rlhf_cli.analysis.comparison.measures import RunMeasure
from rlhf_cli.analysis.comparison.settings import estimate_over
from rlhf_cli.analysis.comparison.verdicts import (
    BETTER,
    EQUAL,
    IMPOSSIBLE,
    UNDECIDED,
    WORSE,
    MeasureVerdict,
    in_words,
    paired_difference,
    pairs_of,
    power_of,
    seeds_needed,
)
from rlhf_cli.numerics.intervals import Estimate
from tests.support.logged_runs import compared, configured, write_run

A = {"0": 0.50, "1": 0.60, "2": 0.70, "3": 0.55}
B = {"0": 0.54, "1": 0.65, "2": 0.73, "3": 0.60}
"""Differences 0.04, 0.05, 0.03, 0.05: mean 0.0425, s = sqrt(0.000275 / 3) = 0.0095743."""
BOTH = {"a": A, "b": B}


@pytest.mark.parametrize(("comparisons", "t"), [(1, 3.18245), (3, 4.85666)])
def test_by_hand(comparisons: int, t: float) -> None:
    """t(3) of 95 % and, of three comparisons, of 98.3 %: 0.0425 ± t * 0.0095743 / 2. The p value is scipy's."""
    found = paired_difference(BOTH, "b", "a", sign=1, comparisons=comparisons)
    half = t * 0.0095743 / 2
    assert found.interval == pytest.approx((0.0425, 0.0425 - half, 0.0425 + half), abs=1e-6)
    assert (found.outcome, found.seeds, found.seeds_needed) == (BETTER, ("0", "1", "2", "3"), None)
    p = stats.ttest_rel(list(B.values()), list(A.values())).pvalue
    assert (found.effect, found.p_value) == pytest.approx((0.0425 / 0.0095743, p), rel=1e-4)
    assert found.p_adjusted == pytest.approx(comparisons * p)


@pytest.mark.parametrize("comparisons", [1, 2, 5, 9, 10, 20, 30, 100])
@pytest.mark.parametrize("scale", [0.2, 1.0, 3.0])
def test_decision_and_interval_never_contradict_each_other(comparisons: int, scale: float) -> None:
    """A difference is decided if its interval excludes zero, and exactly then p times m is below 5 %."""
    there = {seed: value + scale * (B[seed] - value) - (1 - scale) * 0.02 for seed, value in A.items()}
    found = paired_difference({"a": A, "b": there}, "b", "a", sign=1, comparisons=comparisons)
    low, high = found.difference.low, found.difference.high
    assert (found.outcome in (BETTER, WORSE)) == (not low <= 0 <= high) == (found.p_adjusted < 0.05)


def test_where_less_is_better_more_is_worse_and_of_many_comparisons_none_is_decided() -> None:
    """p is 0.003, which 20 comparisons raise above 5 %; a probability is at most 1."""
    cases = ("ba", -1, 1, WORSE), ("ab", -1, 1, BETTER), ("ba", 1, 20, UNDECIDED), ("ba", 1, 1000, UNDECIDED)
    for names, sign, comparisons, outcome in cases:
        found = paired_difference(BOTH, *names, sign=sign, comparisons=comparisons)
        assert found.outcome == outcome
    assert found.p_adjusted == 1.0


@pytest.mark.parametrize(
    ("other", "seeds", "mean"),
    [
        ({"0": 0.54, "1": math.nan, "2": 0.73, "9": 5.0}, ("0", "2"), 0.035),
        ({}, (), None),
        ({"0": 0.9, "1": math.inf}, ("0",), 0.4),
        ({"7": 0.9, "8": 0.8}, (), None),
    ],
)
def test_only_common_seeds_that_are_numbers_count(
    other: dict[str, float], seeds: tuple[str, ...], mean: float | None
) -> None:
    """One difference has no interval and no verdict."""
    found = paired_difference({"a": A, "b": other}, "b", "a", sign=1, comparisons=1)
    assert (found.seeds, found.difference.mean) == (seeds, mean if mean is None else pytest.approx(mean))
    assert len(seeds) > 1 or (found.outcome, found.difference.low, found.seeds_needed) == (IMPOSSIBLE, None, None)


def test_rounding_to_float32_is_no_deviation() -> None:
    """TRL logs means in float32; the exact differences are equal in each seed."""
    exact = {"0": 0.55, "1": 0.65, "2": 0.7}
    here = {seed: float(np.float32(value)) for seed, value in exact.items()}
    shifted = {seed: float(np.float32(value - 0.05)) for seed, value in exact.items()}
    nearly = {seed: value + 1e-9 * int(seed) for seed, value in here.items()}
    for there, outcome in ((shifted, IMPOSSIBLE), (nearly, EQUAL)):
        assert stdev(here[seed] - there[seed] for seed in here) > 0
        assert paired_difference({"a": there, "b": here}, "b", "a", sign=1, comparisons=1).outcome == outcome


@pytest.mark.parametrize("size", [1.0, 1e5, -1e5, 2.0**16])
def test_rounding_of_equal_differences_is_no_deviation(size: float) -> None:
    """Differences of 0.1 deviate by the rounding of what they are differences of; a millionth of it is no rounding."""
    here = {str(seed): size + 0.1 * seed for seed in range(6)}
    for gap, outcome in ((0.1, IMPOSSIBLE), (-0.1, IMPOSSIBLE), (0.0, EQUAL)):
        there = {seed: value - gap for seed, value in here.items()}
        found = paired_difference({"a": there, "b": here}, "b", "a", sign=1, comparisons=1)
        assert (found.outcome, found.difference.low, found.effect) == (outcome, None, None)
        assert found.difference.mean == pytest.approx(gap)
    zeros = dict.fromkeys(here, 0.0)
    assert paired_difference({"a": zeros, "b": zeros}, "b", "a", sign=1, comparisons=1).outcome == EQUAL
    there = {seed: value - 0.1 - 1e-6 * abs(size) * int(seed) for seed, value in here.items()}
    assert paired_difference({"a": there, "b": here}, "b", "a", sign=1, comparisons=1).outcome == BETTER


@pytest.mark.parametrize(("effect", "seeds"), [(0.0, None), (1e-4, None), (0.2, 199), (0.5, 34), (0.8, 15)])
def test_sample_sizes_are_those_of_g_power(effect: float, seeds: int | None) -> None:
    """G*Power 3.1, t tests, difference between two dependent means, two tails, alpha 0.05, power 0.8 (Cohen's small,
    medium and large effect). No effect, or hardly one, has none.
    """
    assert seeds_needed(effect, comparisons=1) == seeds


def test_a_huge_effect_is_always_seen() -> None:
    """Far out SciPy's series for the noncentral t sometimes does not converge, and gives NaN."""
    for seeds, comparisons in ((7, 1), (10, 3), (20, 1), (50, 30)):
        effects = [5 * 1.005**step for step in range(600)]
        assert all(power_of(effect, seeds, comparisons=comparisons) > 0.9999 for effect in effects)


@pytest.mark.parametrize("comparisons", [1, 3, 12])
@pytest.mark.parametrize("effect", [0.1, 0.3, 0.7, 1.3, 2.5, 6.0, 15.0, 60.0, 1e4])
def test_the_number_of_seeds_is_the_smallest_with_enough_power(effect: float, comparisons: int) -> None:
    """One after another from two on, with scipy.stats' noncentral t: the first whose power is 80 %."""

    def power(count: int) -> float:
        critical = stats.t.ppf(1 - 0.05 / (2 * comparisons), count - 1)
        # Far out the series gives NaN, where the noncentral t is nearly normal around its noncentrality.
        found = stats.nct.sf(critical, count - 1, effect * math.sqrt(count))
        return float(effect * math.sqrt(count) > critical if math.isnan(found) else found)

    least = next((count for count in range(2, 1001) if power(count) >= 0.8), None)
    assert seeds_needed(effect, comparisons=comparisons) == seeds_needed(-effect, comparisons=comparisons) == least


A_B = {"a": [0.1, 0.2, 0.3, 0.4], "b": [0.5, 0.61, 0.7, 0.79]}
FAR, NEAR = {**A_B, "c": [0.9, 1.02, 1.1, 1.2]}, {**A_B, "c": [0.6, 0.5, 0.8, 0.7]}


def verdict(
    arms: dict[str, list[float]], *, sign: int = 1, baseline: str | None = None, comparisons: int | None = None
) -> MeasureVerdict:
    values = {name: {str(seed): one for seed, one in enumerate(numbers)} for name, numbers in arms.items()}
    pairs = pairs_of(list(arms), baseline)
    family = {"sign": sign or 1, "comparisons": comparisons or len(pairs)}
    differences = tuple(paired_difference(values, *pair, **family) for pair in pairs)
    return MeasureVerdict(RunMeasure("m", "m", "reward", sign), "key", tuple(arms), baseline, differences, {}, "")


@pytest.mark.parametrize(
    ("arms", "sign", "baseline", "winner"),
    [
        (FAR, 1, None, "c"),
        (FAR, -1, None, "a"),
        (NEAR, 1, None, None),  # a tie above
        (FAR, 1, "a", None),  # not held together
        (A_B, 1, "a", "b"),
        (A_B, -1, "a", "a"),
        ({"a": FAR["a"], "b": FAR["a"]}, 1, None, None),
        (FAR, 0, None, None),  # neither is better
    ],
)
def test_the_winner(arms: dict[str, list[float]], sign: int, baseline: str | None, winner: str | None) -> None:
    assert verdict(arms, sign=sign, baseline=baseline).winner == winner


CORRECT = RunMeasure("correct", "rewards/correct/mean", "component")


def gaps(effect: float, count: int) -> dict[str, float]:
    """Return `count` differences of mean 0.1 with this effect: half of them above the mean, half below."""
    spread = 0.1 / effect / math.sqrt(count / (count - 1))
    return {str(seed): 0.1 + (spread if seed % 2 else -spread) for seed in range(count)}


def test_the_pair_that_is_named_is_the_one_that_fewest_more_seeds_decide() -> None:
    """b has effect 1 over two seeds, c effect 0.6 over ten, and so the larger t: 1.9 against 1.4. Of six comparisons b
    needs fewer more.
    """
    values = {"a": dict.fromkeys(map(str, range(10)), 0.0), "b": gaps(1.0, 2), "c": gaps(0.6, 10)}
    pairs = [paired_difference(values, name, "a", sign=1, comparisons=6) for name in "bc"]
    more = [(seeds_needed(one.effect or 0.0, comparisons=6) or 0) - len(one.seeds) for one in pairs]
    assert abs(pairs[1].effect or 0.0) * math.sqrt(10) > abs(pairs[0].effect or 0.0) * math.sqrt(2)
    assert more[0] < more[1]
    assert in_words(CORRECT, pairs, "a") == (
        "No clear difference in correct between a and b or c (2 to 10 seeds). "
        f"About {more[0]} more seeds would separate a from b (b - a: +0.1 [-5.3, +5.5])."
    )


def test_of_pairs_that_need_as_many_more_the_larger_effect_is_named() -> None:
    """Of two comparisons effects of 0.5 and 0.502 both need 41 seeds (scipy's noncentral t, as everywhere here)."""
    for order, sign in itertools.product(("bc", "cb"), (1, -1)):
        larger = {seed: sign * gap for seed, gap in gaps(0.502, 10).items()}
        values = {"a": dict.fromkeys(larger, 0.0), "b": larger, "c": gaps(0.5, 10)}
        pairs = [paired_difference(values, name, "a", sign=1, comparisons=2) for name in order]
        assert {one.seeds_needed for one in pairs} == {41}
        assert "About 31 more seeds would separate a from b (b - a: " in in_words(CORRECT, pairs, "a")


def test_only_what_both_values_have_is_averaged(place: Path) -> None:
    """At the learning rate 2 everything is higher by 1, and weight 0.5 was not run there with seed 1: its difference
    there is that at the rate 1, 0.2, and not 0.2 less the 0.5 that rate 2 adds to one side.
    """
    cells = [(0.0, 1, 0), (0.0, 2, 0), (0.5, 1, 0), (0.5, 2, 0), (0.0, 1, 1), (0.0, 2, 1), (0.5, 1, 1)]
    runs = [
        write_run(
            place / f"{weight}-{rate}-{seed}",
            configured(weight, seed, other={"rate": rate}),
            {"rewards/correct/mean": [rate - 1 + (0.1 * (seed + 1) if weight else 0.0)]},
        )
        for weight, rate, seed in cells
    ]
    (difference,) = compared(runs, by="weight", on=("correct",)).verdicts[0].differences
    assert (difference.seeds, difference.difference.mean) == (("0", "1"), pytest.approx((0.1 + 0.2) / 2))


THREE, OTHER = [0.1, 0.2, 0.3], [0.2, 0.1, 0.31]
SAID = {
    # Of four seeds t is 3.18245, and the deviations of the three differences are 0.00816, 0.01 and 0.00577.
    "one, two": (
        FAR,
        "b beats a on m by 0.400 [0.387, 0.413] (4 seeds). "
        "c beats a on m by 0.805 [0.789, 0.821] and b by 0.4050 [0.3958, 0.4142] (4 seeds).",
    ),
    "less": ({"a": THREE, "b": [0.5, 0.61, 0.7]}, "a beats b on m (less is better) by 0.40"),
    "three undecided": (
        {"a": THREE, "b": OTHER, "c": [0.3, 0.12, 0.2]},
        "No clear difference in m between a, b and c (3 seeds).",
    ),
    "two pairs of three": (
        {"a": THREE, "b": OTHER, "c": [0.2, 0.301, 0.4]},
        "] (3 seeds). No clear difference in m between a and b nor between b and c (3 seeds). About",
    ),
    "nearly": (
        {"a": THREE, "b": [0.11, 0.22, 0.31]},
        "No clear difference in m between a and b (3 seeds). "
        "About 1 more seed would separate a from b (b - a: +0.013 [-0.001, +0.028]).",
    ),
    "hopeless": (
        {"a": [0.1] * 4, "b": [0.0, 0.2, 0.0, 0.20001]},
        "No clear difference in m between a and b (4 seeds). "
        "Even 1000 seeds would not separate a from b (b - a: +0.00 [-0.18, +0.18]).",
    ),
    "equal": ({"a": [0.1, 0.2], "b": [0.1, 0.2]}, "b and a are equal on m in every seed."),
    "shifted": ({"a": [0.25, 0.5], "b": [0.5, 0.75]}, "No interval for a and b: they differ on m by the same in every"),
    "no seed": ({"a": [], "b": [0.5]}, "No verdict on m for a and b: they share no comparable seed"),
    "three pairs": ({"a": [0.1], "b": [0.2], "c": [0.3]}, "No verdict on m for a and b, a and c, b and c: they"),
    "six pairs": (
        {"a": [0.1], "b": [0.2], "c": [0.3], "d": [0.4]},
        "No verdict on m for a and b, a and c, a and d and others: they share one comparable seed",
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_a_verdict_in_words(name: str) -> None:
    arms, said = SAID[name]
    sign = -1 if name == "less" else 1
    pairs = verdict(arms, sign=sign, comparisons=1).differences
    text = in_words(RunMeasure("m", "m", "component", sign), pairs)
    assert said in text if said.startswith("]") else text.startswith(said)


SWEEPS, SEEDS, TRUTH = 400, 5, 0.6
VALUES = list("abcde")


def limits(share: float) -> tuple[float, float]:
    half = 3.3 * math.sqrt(share * (1 - share) / SWEEPS)
    return share - half, share + half


def sweeps() -> Iterator[dict[str, dict[str, float]]]:
    """Yield value -> seed -> number for one sweep after another."""
    random = np.random.default_rng(0)
    for _ in range(SWEEPS):
        numbers = TRUTH + random.normal(0, 0.05, (1, SEEDS)) + random.normal(0, 0.03, (len(VALUES), SEEDS))
        yield {
            value: {str(seed): float(number) for seed, number in enumerate(row)}
            for value, row in zip(VALUES, numbers, strict=True)
        }


def holds(found: Estimate, truth: float) -> bool:
    return found.low is not None and found.high is not None and found.low <= truth <= found.high


def rates(comparisons: int) -> tuple[float, float, float]:
    """Return the shares of sweeps with the truth in one difference, in all of them, and with a verdict for a value."""
    one, together, alarms = [], [], []
    for values in sweeps():
        pairs = [paired_difference(values, *pair, sign=1, comparisons=comparisons) for pair in pairs_of(VALUES, None)]
        inside = [holds(pair.difference, 0.0) for pair in pairs]
        one.append(inside[0])
        together.append(all(inside))
        alarms.append(any(pair.outcome in (BETTER, WORSE) for pair in pairs))
    return float(np.mean(one)), float(np.mean(together)), float(np.mean(alarms))


def test_intervals_contain_the_truth_as_often_as_they_claim() -> None:
    low, high = limits(0.95)
    assert low <= np.mean([holds(estimate_over(list(values["a"].values())), TRUTH) for values in sweeps()]) <= high
    assert low <= rates(comparisons=1)[0] <= high


def test_false_alarms_of_a_family_are_at_most_five_per_cent_and_agree_with_its_intervals() -> None:
    _, together, alarms = rates(comparisons=10)
    assert alarms <= limits(0.05)[1]
    assert together == pytest.approx(1 - alarms)


def test_negative_control_without_correction_every_third_sweep_has_a_winner() -> None:
    _, together, alarms = rates(comparisons=1)
    assert alarms > 0.2
    assert together < 0.8


def test_negative_control_unpaired_intervals_are_too_wide() -> None:
    """The shared effect of a seed does not cancel, so unpaired intervals hide nearly every difference."""
    pairs = [(list(values["a"].values()), list(values["b"].values())) for values in sweeps()]
    assert np.mean([stats.ttest_ind(*pair).pvalue > 0.05 for pair in pairs]) > limits(0.95)[1]
