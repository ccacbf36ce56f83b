"""Runs side by side: what is compared, what is no fair comparison, and what is said about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.analysis.comparison.comparison import Comparison, ComparisonOptions, compare, other_scores, why_no_total
from rlhf_cli.analysis.comparison.logged_run import LoggedRun, flat, read_runs, weights_of
from rlhf_cli.runs.run_folder import RunFolder
from tests.support.logged_runs import configured, in_memory, write_sweep

ENDS = {0.0: [0.50, 0.60, 0.70, 0.55], 0.5: [0.54, 0.65, 0.73, 0.61], 1.0: [0.50, 0.61, 0.69, 0.55]}
"""0.5 is better by 0.04, 0.05, 0.03, 0.06; 1 and 0 differ by 0, 0.01, -0.01, 0."""


def of(folders: list[RunFolder], **asked: object) -> Comparison:
    return compare(read_runs(folders)[0], ComparisonOptions(**asked))  # type: ignore[arg-type]


@pytest.fixture
def sweep(place: Path) -> list[RunFolder]:
    return write_sweep(place / "runs" / "sweep", ENDS)


def test_the_verdict_in_words(sweep: list[RunFolder]) -> None:
    """Three comparisons on correct; brevity is the same in all runs: t(3) at 1 - 0.05 / 6 is 4.8567, times 0.012910 / 2
    is 0.03135.

    1 against 0.5: differences -0.04, -0.04, -0.04, -0.06 have s = 0.01, and 4.8567 * 0.01 / 2 is 0.02428 around 0.045.
    1 against 0: 0, 0.01, -0.01, 0 have s = 0.008165, and 4.8567 * 0.008165 / 2 is 0.01983 around 0.
    """
    verdict = of(sweep).verdicts[0]
    assert verdict.text == (
        "0.5 beats 0 on correct by 0.045 [0.014, 0.076] and 1 by 0.045 [0.021, 0.069] (4 seeds). "
        "No clear difference in correct between 0 and 1 (4 seeds). "
        "Even 1000 seeds would not separate 0 from 1 (1 - 0: +0.000 [-0.020, +0.020])."
    )


def test_one_seed_says_impossible_and_not_zero(place: Path) -> None:
    found = of(write_sweep(place / "sweep", {0.0: [0.5], 0.5: [0.9]}))
    assert found.estimates["weight=0"]["correct"].low is None
    assert found.verdicts == []
    assert "impossible, not zero" in str(found.no_verdict)
    asked = of(write_sweep(place / "again", {0.0: [0.5], 0.5: [0.9]}), on=("correct",)).verdicts[0].text
    assert asked.startswith("No verdict on correct for 0 and 0.5: they have one seed in common, all else equal")


def pair(*changes: dict[str, Any]) -> list[LoggedRun]:
    """Runs with these values at these dotted keys, and nothing else that differs."""
    base = configured()
    return [
        in_memory(f"run {number}", settings={**dict(flat(base)), **one}, weights=weights_of(base))
        for number, one in enumerate(changes)
    ]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (["rewards.a.weight"], "rewards.a.weight differs"),
        (["rewards.a.weight.start"], "rewards.a.weight.start differs"),
        (["rewards.a.weight", "rewards.b.weight"], "rewards.a.weight, rewards.b.weight differ"),
        (["primary"], "primary differs"),
        (["truncation.penalty", "aggregate"], "aggregate, truncation.penalty differ"),
        (["rewards.a.weight", "rewards.a.clip"], "rewards.a.weight differs"),  # weights say most
        ([f"rewards.{name}.weight" for name in "abc"], "rewards.a.weight, rewards.b.weight, rewards.c.weight differ"),
        (
            [f"rewards.{name}.weight" for name in "abcd"],
            "rewards.a.weight, rewards.b.weight, rewards.c.weight and more differ",
        ),
        (["seed", "trainer.args.learning_rate", "rewards.a.args.seed"], None),
        ([], None),
    ],
)
def test_why_totals_are_not_the_same_sum(keys: list[str], said: str | None) -> None:
    found = why_no_total(pair(dict.fromkeys(keys, 1), dict.fromkeys(keys, 2)))
    assert found == (said and f"no total: {said}, so the same answers would have other totals")


def test_rewards_that_score_otherwise() -> None:
    one, other = ({f"rewards.correct.{key}": by for key in ("fn", "args.at", "clip", "gate", "weight")} for by in "xy")
    said = "rewards.correct.fn, rewards.correct.args.at, rewards.correct.clip differs"
    assert other_scores(pair(one, other)) == [f"correct is not the same reward in all runs: {said}"]
    assert other_scores(pair({"rewards.brevity.weight": 1}, {"rewards.brevity.weight": 2})) == []
    lacking_one = pair(one, other)
    lacking_one[1] = in_memory("without", settings=lacking_one[1].settings, weights={"brevity": 1.0})
    assert other_scores(lacking_one) == []


def test_one_setting_with_one_seed_leaves_the_others_their_verdict(place: Path) -> None:
    found = of(write_sweep(place / "sweep", {0.0: [0.5, 0.6], 0.5: [0.9, 0.8], 1.0: [0.7]}))
    assert found.no_verdict is None
    assert found.verdicts
