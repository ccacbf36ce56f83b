"""What a verdict says of what it cannot decide: how many more seeds, for which pair, and over what is averaged."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from rlhf_cli.analysis.comparison.comparison import Comparison, ComparisonOptions, compare
from rlhf_cli.analysis.comparison.logged_run import read_runs
from rlhf_cli.analysis.comparison.measures import RunMeasure
from rlhf_cli.analysis.comparison.verdicts import in_words, paired_difference, seeds_needed
from rlhf_cli.runs.run_folder import RunFolder
from tests.support.logged_runs import configured, write_run

CORRECT = RunMeasure("correct", "rewards/correct/mean", "component")


def of(folders: list[RunFolder], **asked: object) -> Comparison:
    return compare(read_runs(folders)[0], ComparisonOptions(**asked))  # type: ignore[arg-type]


def gaps(effect: float, count: int) -> dict[str, float]:
    """So many differences of mean 0.1 whose deviation makes them this effect: half above and half below."""
    spread = 0.1 / effect / math.sqrt(count / (count - 1))
    return {str(seed): 0.1 + (spread if seed % 2 else -spread) for seed in range(count)}


@pytest.mark.parametrize(("count", "more"), [(6, 28), (4, 30)])
def test_so_many_more_than_there_are(count: int, more: int) -> None:
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
    (difference,) = of(runs, by="weight", on=("correct",)).verdicts[0].differences
    assert difference.seeds == ("0", "1")
    assert difference.difference.mean == pytest.approx((0.1 + 0.2) / 2)
