"""Verdicts in words: decided, undecided and impossible differences, and how many more seeds would decide."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from rlhf_cli.analysis.comparison.measures import RunMeasure
from rlhf_cli.analysis.comparison.verdicts import in_words, paired_difference, pairs_of, seeds_needed
from tests.support.logged_runs import compared, configured, write_run

CORRECT = RunMeasure("correct", "rewards/correct/mean", "component")


def gaps(effect: float, count: int) -> dict[str, float]:
    """Return `count` differences of mean 0.1 with this effect: half of them above the mean, half below."""
    spread = 0.1 / effect / math.sqrt(count / (count - 1))
    return {str(seed): 0.1 + (spread if seed % 2 else -spread) for seed in range(count)}


@pytest.mark.parametrize(("count", "more"), [(6, 28), (4, 30)])
def test_the_number_of_further_seeds(count: int, more: int) -> None:
    """Effect 0.5: G*Power says 34 seeds for two tails at 5 %."""
    values = {"a": dict.fromkeys(gaps(0.5, count), 0.0), "b": gaps(0.5, count)}
    one = paired_difference(values, "b", "a", sign=1, comparisons=1)
    assert one.effect == pytest.approx(0.5)
    assert f"About {more} more seeds would separate a from b" in in_words(CORRECT, [one])


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
        f"About {more[0]} more seeds would separate a from b (b - a: +0.1 [-5.3, +5.5]); rough estimate."
    )


@pytest.mark.parametrize("order", ["bc", "cb"])
@pytest.mark.parametrize("sign", [1, -1])
def test_of_pairs_that_need_as_many_more_the_larger_effect_is_named(order: str, sign: int) -> None:
    """Of two comparisons effects of 0.5 and 0.502 both need 41 seeds (scipy's noncentral t, as everywhere here)."""
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
    assert difference.seeds == ("0", "1")
    assert difference.difference.mean == pytest.approx((0.1 + 0.2) / 2)


SAID = {
    # Of four seeds t is 3.18245, and the deviations of the three differences are 0.00816, 0.01 and 0.00577.
    "one, two": (
        {"a": [0.1, 0.2, 0.3, 0.4], "b": [0.5, 0.61, 0.7, 0.79], "c": [0.9, 1.02, 1.1, 1.2]},
        "b beats a on m by 0.400 [0.387, 0.413] (4 seeds). "
        "c beats a on m by 0.805 [0.789, 0.821] and b by 0.4050 [0.3958, 0.4142] (4 seeds).",
    ),
    "less": ({"a": [0.1, 0.2, 0.3], "b": [0.5, 0.61, 0.7]}, "a beats b on m (less is better) by 0.40"),
    "none": ({"a": [0.1, 0.2, 0.3], "b": [0.2, 0.1, 0.31]}, "No clear difference in m between a and b (3 seeds)."),
    "three undecided": (
        {"a": [0.1, 0.2, 0.3], "b": [0.2, 0.1, 0.31], "c": [0.3, 0.12, 0.2]},
        "No clear difference in m between a, b and c (3 seeds).",
    ),
    "two pairs of three": (
        {"a": [0.1, 0.2, 0.3], "b": [0.2, 0.1, 0.31], "c": [0.2, 0.301, 0.4]},
        "] (3 seeds). No clear difference in m between a and b nor between b and c (3 seeds). About",
    ),
    "nearly": (
        {"a": [0.1, 0.2, 0.3], "b": [0.11, 0.22, 0.31]},
        "No clear difference in m between a and b (3 seeds). "
        "About 1 more seed would separate a from b (b - a: +0.013 [-0.001, +0.028]); rough estimate.",
    ),
    "hopeless": (
        {"a": [0.1] * 4, "b": [0.0, 0.2, 0.0, 0.20001]},
        "No clear difference in m between a and b (4 seeds). "
        "Even 1000 seeds would not separate a from b (b - a: +0.00 [-0.18, +0.18]).",
    ),
    "equal": ({"a": [0.1, 0.2], "b": [0.1, 0.2]}, "b and a are equal on m in every seed."),
    "shifted": ({"a": [0.25, 0.5], "b": [0.5, 0.75]}, "No interval for a and b: they differ on m by the same in every"),
    "one seed": ({"a": [0.25], "b": [0.5]}, "No verdict on m for a and b: they share one comparable seed"),
    "no seed": ({"a": [], "b": [0.5]}, "No verdict on m for a and b: they share no comparable seed"),
    "three": ({"a": [0.1], "b": [0.2], "c": [0.3]}, "No verdict on m for a and b, a and c, b and c: they share one"),
}


@pytest.mark.parametrize("name", SAID)
def test_a_verdict_in_words(name: str) -> None:
    arms, said = SAID[name]
    values = {arm: {str(seed): number for seed, number in enumerate(numbers)} for arm, numbers in arms.items()}
    sign = -1 if name == "less" else 1
    pairs = [paired_difference(values, *pair, sign=sign, comparisons=1) for pair in pairs_of(list(arms), None)]
    text = in_words(RunMeasure("m", "m", "component", sign), pairs)
    assert said in text if said.startswith("]") else text.startswith(said)
