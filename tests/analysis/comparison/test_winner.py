"""Who has won, for a program: only who is beyond doubt better than every other value."""

from __future__ import annotations

import pytest

from rlhf_cli.analysis.comparison.measures import RunMeasure
from rlhf_cli.analysis.comparison.verdicts import MeasureVerdict, paired_difference, pairs_of

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
