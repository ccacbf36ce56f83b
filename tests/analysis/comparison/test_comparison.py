"""Verdicts over seeds, and totals and rewards that cannot be compared."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.analysis.comparison.comparison import other_scores, why_no_total
from rlhf_cli.analysis.comparison.logged_run import LoggedRun, flat, weights_of
from rlhf_cli.runs.run_folder import RunFolder
from tests.support.logged_runs import compared, configured, in_memory, write_sweep

ENDS = {0.0: [0.50, 0.60, 0.70, 0.55], 0.5: [0.54, 0.65, 0.73, 0.61], 1.0: [0.50, 0.61, 0.69, 0.55]}
"""0.5 is better by 0.04, 0.05, 0.03, 0.06; 1 and 0 differ by 0, 0.01, -0.01, 0."""


@pytest.fixture
def sweep(place: Path) -> list[RunFolder]:
    return write_sweep(place / "runs" / "sweep", ENDS)


def test_one_family_of_comparisons(sweep: list[RunFolder]) -> None:
    """Three comparisons on correct; brevity is the same in all runs: t(3) at 1 - 0.05 / 6 is 4.8567, times 0.012910 / 2
    is 0.03135.

    1 against 0.5: differences -0.04, -0.04, -0.04, -0.06 have s = 0.01, and 4.8567 * 0.01 / 2 is 0.02428 around 0.045.
    1 against 0: 0, 0.01, -0.01, 0 have s = 0.008165, and 4.8567 * 0.008165 / 2 is 0.01983 around 0.
    """
    found = {(pair.value, pair.other): pair for pair in compared(sweep).verdicts[0].differences}
    assert [pair.outcome for pair in found.values()] == ["better", "undecided", "worse"]
    assert found["0.5", "0"].interval == pytest.approx((0.045, 0.01365, 0.07635), abs=1e-5)
    assert found["1", "0.5"].interval == pytest.approx((-0.045, -0.06928, -0.02072), abs=1e-5)
    assert found["1", "0"].interval == pytest.approx((0.0, -0.01983, 0.01983), abs=1e-5)
    assert found["1", "0"].seeds_needed is None


def test_one_seed_has_neither_interval_nor_verdict(place: Path) -> None:
    found = compared(write_sweep(place / "sweep", {0.0: [0.5], 0.5: [0.9]}))
    assert found.estimates["weight=0"]["correct"].low is None
    assert found.verdicts == []
    assert "seed=0,1,2" in str(found.no_verdict)
    asked = compared(write_sweep(place / "again", {0.0: [0.5], 0.5: [0.9]}), on=("correct",))
    assert [pair.outcome for pair in asked.verdicts[0].differences] == ["impossible"]


def pair(*changes: dict[str, Any]) -> list[LoggedRun]:
    """Return runs that differ only in these dotted keys."""
    base = configured()
    return [
        in_memory(f"run {number}", settings={**dict(flat(base)), **one}, weights=weights_of(base))
        for number, one in enumerate(changes)
    ]


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        (["rewards.a.weight"], ["rewards.a.weight"]),
        (["rewards.a.weight.start"], ["rewards.a.weight.start"]),
        (["primary"], ["primary"]),
        (["truncation.penalty", "aggregate"], ["aggregate", "truncation.penalty"]),
        (["rewards.a.weight", "rewards.a.clip"], ["rewards.a.weight"]),  # weights matter most
        ([f"rewards.{name}.weight" for name in "abcd"], [f"rewards.{name}.weight" for name in "abc"]),
        (["seed", "trainer.args.learning_rate", "rewards.a.args.seed"], None),
        ([], None),
    ],
)
def test_keys_that_make_totals_incomparable(keys: list[str], named: list[str] | None) -> None:
    found = why_no_total(pair(dict.fromkeys(keys, 1), dict.fromkeys(keys, 2)))
    assert re.findall(r"(?:rewards|truncation)[.\w]+|primary|aggregate", found or "") == (named or [])
    assert (found is None) == (named is None)


def test_rewards_with_other_scores_are_noted() -> None:
    one, other = ({f"rewards.correct.{key}": by for key in ("fn", "args.at", "clip", "gate", "weight")} for by in "xy")
    (note,) = other_scores(pair(one, other))
    assert re.findall(r"rewards[.\w]+", note) == [f"rewards.correct.{key}" for key in ("fn", "args.at", "clip")]
    assert other_scores(pair({"rewards.brevity.weight": 1}, {"rewards.brevity.weight": 2})) == []
    lacking_one = pair(one, other)
    lacking_one[1] = in_memory("without", settings=lacking_one[1].settings, weights={"brevity": 1.0})
    assert other_scores(lacking_one) == []


def test_one_setting_with_one_seed_leaves_the_others_their_verdict(place: Path) -> None:
    found = compared(write_sweep(place / "sweep", {0.0: [0.5, 0.6], 0.5: [0.9, 0.8], 1.0: [0.7]}))
    assert found.no_verdict is None
    assert found.verdicts
