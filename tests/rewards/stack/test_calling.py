"""Failures of a reward function: whose fault it was, what it costs, what is kept of it, and when they end the run."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rlhf_cli.errors import RewardError, RewardFailed
from rlhf_cli.rewards.stack.component import Component, OnError, ScoreGate
from rlhf_cli.rewards.stack.reward_stack import MaxErrors, RewardStack
from tests.support.reward_bench import BATCH, Bench, Rows, picky, raises

FAILURES = [
    (raises(ValueError("odd")), "ValueError: odd"),
    (lambda: "0.5", "RewardError: reward 'mine' did not return a number for row 0"),
    (lambda: math.inf, "RewardError: reward 'mine' did not return a number for row 0"),
    (lambda: [1.0] * 2, "RewardError: reward 'mine' did not return values per token for row 0"),
    (lambda: OSError("returned"), "OSError: returned"),
]


IDS = ["raise", "text", "infinite", "dense length", "returned error"]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(("do", "message"), FAILURES, ids=IDS)
class TestOneRow:
    @pytest.mark.parametrize(("on_error", "fixed"), [("exclude", None), (-1.0, -1.0), (0.0, 0.0)])
    @pytest.mark.fault(30)
    def test_is_blamed_alone(
        self, bench: Bench, do: Any, message: str, is_async: bool, on_error: OnError, fixed: float | None
    ) -> None:
        found = bench(picky(2, do, is_async), on_error=on_error)
        assert found.raw == [0.0, 10.0, None, 30.0]
        assert found.fixed == [None, None, fixed, None]
        assert found.errors[2] is not None
        assert found.errors[2].startswith(message)
        assert [error is None for error in found.errors] == [True, True, False, True]
        assert (found.num_errors, found.timeouts, found.calls) == (1, 0, 4)
        assert found.num_excluded == (fixed is None)

    def test_under_raise_ends_it_all(self, bench: Bench, do: Any, message: str, is_async: bool) -> None:
        with pytest.raises((RewardFailed, RewardError)) as caught:
            bench(picky(2, do, is_async))
        assert caught.value.row == 2
        assert caught.value.where == "rewards.mine"
        if isinstance(caught.value, RewardFailed):
            assert caught.value.got == message
            assert "'two'" in str(caught.value.expected)
            assert "on_error=exclude" in str(caught.value.hint)


@pytest.mark.parametrize("on_error", ["raise", "exclude", 0.5])
def test_negative_control_nothing_fails(bench: Bench, on_error: OnError) -> None:
    found = bench(picky(99, raises(ValueError("odd"))), on_error=on_error)
    assert found.raw == [0.0, 10.0, 20.0, 30.0]
    assert (found.num_errors, found.calls, bench.recorded) == (0, 4, [])


class TestTheBatchFailsAndNoRowDoes:
    @staticmethod
    def only_alone(row: Rows, **_: Any) -> list[float]:
        if len(row) > 1:
            raise ValueError("one at a time, please")
        return [1.0]

    def test_on_error_raise_fails_without_naming_a_row(self, bench: Bench) -> None:
        with pytest.raises(RewardFailed) as caught:
            bench(self.only_alone)
        assert caught.value.got == "ValueError: one at a time, please"
        assert (caught.value.row, bench.recorded) == (None, [])

    def test_otherwise_the_rows_keep_their_scores(self, bench: Bench) -> None:
        found = bench(self.only_alone, on_error="exclude")
        assert (found.raw, found.num_errors) == ([1.0] * 4, 0)


class TestHopeless:
    @pytest.mark.parametrize("on_error", ["exclude", 0.0])
    @pytest.mark.fault(30)
    def test_a_reward_that_only_fails_ends_the_run_at_the_third_batch(self, bench: Bench, on_error: OnError) -> None:
        stack = bench.stack(lambda **_: 1 / 0, on_error=on_error)
        stack.evaluate(**BATCH)
        stack.evaluate(**BATCH)
        with pytest.raises(RewardFailed) as caught:
            stack.evaluate(**BATCH)
        assert caught.value.got == "ZeroDivisionError: division by zero"
        assert len(bench.recorded) == 12

    def test_negative_control_one_row_is_enough_to_go_on(self, bench: Bench) -> None:
        def reward(row: Rows, **_: Any) -> list[float]:
            if row != [3]:
                raise ValueError("odd")
            return [1.0]

        stack = bench.stack(reward, on_error="exclude")
        for _ in range(6):
            assert stack.evaluate(**BATCH)["mine"].num_errors == 3


def test_under_a_gate_the_error_names_the_row_of_the_batch() -> None:
    """The reward is shown rows 1 and 3 and answers nonsense for its second: that is row 3, whose prompt is `three`."""
    gate = Component("gate", lambda row, **_: [float(index % 2) for index in row])
    mine = Component("mine", lambda row, **_: [1.0, "odd"][: len(row)], gates=(ScoreGate("gate", low=1.0),))
    stack = RewardStack([gate, mine])
    with pytest.raises(RewardError) as caught:
        stack.evaluate(**BATCH)
    stack.close()
    assert caught.value.row == 3
    assert str(caught.value.got).endswith("for the completion 'd' of the prompt 'three'")


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


def test_old_failures_are_forgotten() -> None:
    stack = RewardStack([Component("mine", score, on_error=0.0)], max_errors=MaxErrors(0.5, 8))
    batches = [[FAILING] * 2 + ["good"] * 2, ["good"] * 4, ["good"] * 4, [FAILING] * 4]
    for rows in batches:
        stack.evaluate(prompts=["p"] * 4, completions=rows)
    with pytest.raises(RewardFailed) as caught:
        stack.evaluate(prompts=["p"] * 4, completions=[FAILING] * 2 + ["good"] * 2)
    assert caught.value.got == "ValueError: 1 bad"  # the last one


def test_rows_that_a_gate_spares_are_not_counted() -> None:
    """One of four rows is scored and fails: a quarter of all rows, but every scored row."""
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
