"""Which row of a batch failed, where gates left the function only some of them."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_cli.errors import RewardError, RewardFailed
from rlhf_cli.rewards.stack.component import (
    Component,
    FailedCall,
    RewardOutcome,
    RewardTimeout,
    by_row,
    fail,
    keep_nothing,
    refused,
    token_ids,
)
from rlhf_cli.rewards.stack.gates import ScoreGate
from rlhf_cli.rewards.stack.reward_stack import RewardStack

MADE_UP_HINTS = True

BATCH: dict[str, Any] = {
    "prompts": ["zero", "one", "two", "three"],
    "completions": ["w", "x", "y", "z"],
    "completion_ids": [[1], [1, 2], [1], [1, 2, 3]],
    "row": [0, 1, 2, 3],
}


class TestWhichRowFailed:
    """Only rows 1 and 3 are open: the function is given two rows, and its second is row 3 of the batch."""

    def failing(self, score: Any) -> tuple[Any, list[dict[str, Any]]]:
        recorded: list[dict[str, Any]] = []
        gated = Component("b", score, gates=(ScoreGate("a", low=1.0),))
        stack = RewardStack([Component("a", lambda **_: [0.0, 1.0, 0.0, 1.0]), gated], record_error=recorded.append)
        with pytest.raises((RewardError, RewardFailed)) as caught:
            stack.evaluate(**BATCH)
        stack.close()
        return caught.value, recorded

    @pytest.mark.parametrize("returned", [[1.0, float("nan")], [1.0, "high"], [1.0, [0.0, 0.0]]], ids=str)
    def test_what_is_no_score(self, returned: list[Any]) -> None:
        error, _ = self.failing(lambda **_: returned)
        assert "row 3" in error.what
        assert "row 1" not in error.what
        assert "'three'" in str(error.got)

    def test_a_raise(self) -> None:
        def raises(row: list[int], **_: Any) -> list[float]:
            if 3 in row:
                raise ValueError("odd")
            return [1.0] * len(row)

        error, recorded = self.failing(raises)
        assert error.what == "reward 'b' failed on row 3"
        assert "'three'" in str(error.expected)
        kept = [(one["reward"], one["row"], one["prompt"], one["completion"]) for one in recorded]
        assert kept == [("b", 3, "three", "z")]

    def test_negative_control_its_first_row(self) -> None:
        error, _ = self.failing(lambda **_: [float("inf"), 1.0])
        assert "row 1" in error.what
        assert "'one'" in str(error.got)


def called(row: int | None, error: Exception, **rules: Any) -> FailedCall:
    return FailedCall(Component("b", len, **rules), BATCH, [1, 3], row, error)


@pytest.mark.parametrize(
    ("call", "whose", "got", "expected", "hints"),
    [
        (
            called(3, ValueError("odd")),
            "row 3",
            "ValueError: odd",
            "a score for the completion 'z' of the prompt 'three'",
            2,
        ),
        (
            called(None, RewardTimeout("no answer")),
            "a batch of 2 rows",
            "no answer",
            "an answer in time; which of the rows it was busy with is not known",
            3,
        ),
        (
            called(None, KeyError("k")),
            "a batch of 2 rows",
            "KeyError: 'k'",
            "the same each time: every row gets a score alone, and all of them together did not",
            2,
        ),
    ],
)
def test_a_failure_that_ends_the_run_in_full(call: FailedCall, whose: str, got: str, expected: str, hints: int) -> None:
    kept: list[FailedCall] = []
    lines = [
        "rlhf replay  # fails in the same way, without training",
        "rewards.b.on_error=exclude  # keeps the run alive",
        "rewards.b.timeout_s=off  # or a number of seconds",
    ]
    for replay, told in (("rlhf replay", lines[:hints]), (None, lines[1:hints])):
        with pytest.raises(RewardFailed) as caught:
            fail(call, RewardOutcome.empty(4), lambda one, said=replay: kept.append(one) or said)  # type: ignore[misc]
        error = caught.value
        assert (error.what, error.where) == (f"reward 'b' failed on {whose}", "rewards.b")
        assert (error.got, error.expected) == (got, expected)
        assert error.hint == "\n".join(told)
        assert (error.reward, error.row, error.__cause__) == ("b", call.row, call.error)
    assert kept == [call, call]


@pytest.mark.parametrize(("on_error", "fixed"), [("exclude", None), (-2.0, -2.0), (0.0, 0.0)])
@pytest.mark.parametrize(("row", "blamed"), [(3, [3]), (None, [1, 3])])
@pytest.mark.parametrize("is_timeout", [True, False])
def test_a_failure_that_costs_rows(
    on_error: Any, fixed: float | None, row: int | None, blamed: list[int], is_timeout: bool
) -> None:
    outcome = RewardOutcome.empty(4)
    outcome.fixed[1] = outcome.fixed[3] = 9.0
    error = RewardTimeout("no answer") if is_timeout else ValueError("odd")
    fail(called(row, error, on_error=on_error), outcome, keep_nothing)
    message = "no answer" if is_timeout else "ValueError: odd"
    assert outcome.errors == [message if row in blamed else None for row in range(4)]
    assert [outcome.fixed[row] for row in blamed] == [fixed] * len(blamed)
    assert outcome.timeouts == is_timeout * len(blamed)


def test_nonsense_is_told_of_the_row_of_the_batch_and_how_to_see_it_again() -> None:
    def nonsense(row: int | None) -> RewardError:
        error = RewardError("it returned no number for row 1", got="x", hint="look")
        error.row = row
        return error

    found = refused(called(3, ValueError()), nonsense(1), "rlhf replay")
    assert found.what == "it returned no number for row 3"
    assert found.got == "x, for the completion 'z' of the prompt 'three'"
    assert (found.row, found.hint) == (3, "rlhf replay  # fails in the same way, without training")
    for call, row in ((called(None, ValueError()), 1), (called(3, ValueError()), None)):
        unknown = refused(call, nonsense(row), None)
        assert (unknown.what, unknown.got, unknown.row) == ("it returned no number for row 1", "x", row)
        assert unknown.hint == "look"


@pytest.mark.parametrize(("name", "values"), [("completions", 5), ("prompts", {0: "a"}), ("completion_ids", None)])
def test_an_argument_that_is_no_list_is_named(name: str, values: object) -> None:
    with pytest.raises(TypeError, match=f"`{name}` is no list of one value a completion: {type(values).__name__}"):
        by_row({name: values}, name)
    with pytest.raises(TypeError, match="`completion_ids` of row 1 is no list of token ids: int"):
        token_ids({"completion_ids": [[1], 2]}, 1)
