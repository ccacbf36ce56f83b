"""All rewards of an experiment on one batch: columns, weights and their schedules, stored results."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.stack.aggregating import Schedule, weight_at
from rlhf_cli.rewards.stack.component import Component, ScoreGate
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from tests.support.reward_bench import TWO_ROWS, Counting


def test_names_and_columns_keep_the_given_order() -> None:
    stack = RewardStack(
        [Component("late", Counting(1, 2), gates=(ScoreGate("early"),)), Component("early", Counting(1, 2))]
    )
    assert stack.names == ["late", "early"]
    assert [column.__name__ for column in stack.columns()] == ["late", "early"]
    assert list(stack.evaluate(**TWO_ROWS)) == ["early", "late"]


def test_what_is_counted_of_a_reward_that_scores_every_row() -> None:
    (outcome,) = RewardStack([Component("plain", Counting(1, 2))]).evaluate(**TWO_ROWS).values()
    assert (outcome.timeouts, outcome.calls, outcome.calls_saved, outcome.extra) == (0, 2, 0, {})


def test_weights_at_a_step() -> None:
    stack = RewardStack(
        [
            Component("number", Counting(), -0.25),
            Component("monitored", Counting(), 0.0),
            Component("ramp", Counting(), Schedule(0.0, 1.0, fraction=0.5)),
        ]
    )
    assert stack.weights(0, 100) == [-0.25, 0.0, 0.0]
    assert stack.weights(25, 100) == [-0.25, 0.0, 0.5]
    assert stack.weights(99, 100) == [-0.25, 0.0, 1.0]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        # p = 0, 1/4, 1/2, 3/4, 1, and beyond; cosine: (1 - cos(pi/4)) / 2 = 0.14644661, its mirror 0.85355339
        ("linear", [2.0, 3.0, 4.0, 5.0, 6.0, 6.0]),
        ("cosine", [2.0, 2.58578644, 4.0, 5.41421356, 6.0, 6.0]),
        ("step", [2.0, 2.0, 2.0, 2.0, 6.0, 6.0]),
    ],
)
def test_shapes(shape: str, expected: list[float]) -> None:
    schedule = Schedule(2.0, 6.0, steps=4, shape=shape)  # type: ignore[arg-type]
    assert [weight_at(schedule, step, 100) for step in (0, 1, 2, 3, 4, 50)] == pytest.approx(expected)


def test_a_fraction_of_training() -> None:
    schedule = Schedule(1.0, 0.0, fraction=0.5)
    assert [schedule.at(step, 8) for step in (0, 1, 2, 4, 8)] == [1.0, 0.75, 0.5, 0.0, 0.0]
    # the same step of a run twice as long has gone half as far
    assert schedule.at(4, 16) == 0.5


def test_negative_control_steps_do_not_depend_on_the_length_of_training() -> None:
    schedule = Schedule(0.0, 1.0, steps=10)
    assert schedule.at(5, 10) == schedule.at(5, 1000) == 0.5


class TestOneEvaluationABatch:
    def test_however_many_columns_are_asked(self, stack_of: Any) -> None:
        first, second, third = Counting(1, 2), Counting(3, 4), Counting(5, 6)
        stack = stack_of(first=first, second=second, third=third)
        one, two, three = stack.columns()
        with stack.batch():
            # not in the order of the columns, and one of them twice
            assert [ask(**TWO_ROWS) for ask in (two, one, three, two)] == [[3, 4], [1, 2], [5, 6], [3, 4]]
        assert [len(reward.calls) for reward in (first, second, third)] == [1, 1, 1]

    def test_nothing_of_a_batch_is_left_when_it_is_over(self, stack_of: Any) -> None:
        reward, other = Counting(1, 2), Counting(3, 4)
        stack = stack_of(one=reward, two=other)
        column = stack.columns()[0]
        with stack.batch():
            column(**TWO_ROWS)
        reward.scores, other.scores = [7, 8], [9]
        with pytest.raises(RewardError), stack.batch():
            column(**TWO_ROWS)
        other.scores = [9, 9]
        assert column(**TWO_ROWS) == [7.0, 8.0]
