"""Failures that `on_error` hides are counted, and more than the share of the last rows that may fail end the run."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from rlhf_cli.errors import RewardFailed
from rlhf_cli.rewards.stack.component import Component
from rlhf_cli.rewards.stack.gates import ScoreGate
from rlhf_cli.rewards.stack.reward_stack import MaxErrors, RewardStack

FAILING = "bad"


def score(completions: list[str], **_: Any) -> list[float]:
    if FAILING in completions:
        raise ValueError(f"{completions.count(FAILING)} bad")
    return [1.0] * len(completions)


def rows_until_the_end(bad_every: int, limit: MaxErrors, *, most: int = 200, size: int = 5, **rules: Any) -> int | None:
    """How many rows were scored when the run ended, `most` of them at the most: None if it went on."""
    stack = RewardStack([Component("mine", score, **{"on_error": "exclude", **rules})], max_errors=limit)
    for first in range(0, most, size):
        rows = [FAILING if row % bad_every == 0 else "good" for row in range(first, first + size)]
        try:
            stack.evaluate(prompts=["p"] * size, completions=rows)
        except RewardFailed:
            return first + size
    return None


@pytest.mark.parametrize(
    ("bad_every", "share", "expected"),
    [
        (4, 0.2, 20),  # 5 of 20 rows, more than 4
        (5, 0.2, None),  # 4 of 20: as many as may
        (3, 0.2, 20),
        (2, 0.6, None),
        (2, 1.0, None),
        (5, 0.0, 20),
    ],
)
@pytest.mark.fault(30)
def test_the_share_is_of_a_full_window(bad_every: int, share: float, expected: int | None) -> None:
    assert rows_until_the_end(bad_every, MaxErrors(share, 20)) == expected


@pytest.mark.parametrize("percent", [1, 7, 29, 57, 58])
def test_exactly_the_share_goes_on(percent: int) -> None:
    """0.29 * 100 is 28.999999999999996 in float64, and 29 rows of 100 are no more than 29 %."""
    for num_bad, is_over in ((percent, False), (percent + 1, True)):
        stack = RewardStack(
            [Component("mine", score, on_error="exclude")], max_errors=MaxErrors(float(f"0.{percent:02}"), 100)
        )
        rows = [FAILING] * num_bad + ["good"] * (100 - num_bad)
        with pytest.raises(RewardFailed) if is_over else contextlib.nullcontext():
            stack.evaluate(prompts=["p"] * 100, completions=rows)


def test_a_batch_larger_than_the_window_counts_with_its_last_rows() -> None:
    """Of 60 rows every third fails: of the last ten 51, 54 and 57, a share of 0.3."""
    assert rows_until_the_end(3, MaxErrors(0.25, 10), size=60) == 60
    assert rows_until_the_end(3, MaxErrors(0.3, 10), size=60) is None


def test_old_failures_are_forgotten() -> None:
    stack = RewardStack([Component("mine", score, on_error=0.0)], max_errors=MaxErrors(0.5, 8))
    batches = [[FAILING] * 2 + ["good"] * 2, ["good"] * 4, ["good"] * 4, [FAILING] * 4]
    for rows in batches:
        stack.evaluate(prompts=["p"] * 4, completions=rows)
    with pytest.raises(RewardFailed, match="'mine' failed on 6 of the last 8 rows") as caught:
        stack.evaluate(prompts=["p"] * 4, completions=[FAILING] * 2 + ["good"] * 2)
    assert caught.value.got == "ValueError: 1 bad"  # the last one


def test_rows_that_a_gate_spares_are_not_counted() -> None:
    """Of four rows one is asked for, and that one fails: a quarter of the rows, all of those it was asked for."""
    first = Component("first", lambda row, **_: [float(index == 0) for index in row])
    for eager, ends in ((False, True), (True, False)):
        mine = Component("mine", score, gates=(ScoreGate("first", low=1.0),), on_error=0.0, eager=eager)
        stack = RewardStack([first, mine], max_errors=MaxErrors(0.5, 2 if not eager else 8))
        try:
            for _ in range(2):
                stack.evaluate(prompts=["p"] * 4, completions=[FAILING, "good", "good", "good"], row=[0, 1, 2, 3])
        except RewardFailed:
            assert ends
        else:
            assert not ends


def test_without_a_limit_and_under_raise_nothing_changes() -> None:
    stack = RewardStack([Component("mine", score, on_error="exclude")])
    for _ in range(50):
        stack.evaluate(prompts=["p"] * 2, completions=[FAILING, "good"])
    strict = RewardStack([Component("mine", score)], max_errors=MaxErrors(1.0, 20))
    with pytest.raises(RewardFailed, match="failed on row 0"):
        strict.evaluate(prompts=["p"] * 2, completions=[FAILING, "good"])
