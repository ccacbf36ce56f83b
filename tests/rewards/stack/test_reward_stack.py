"""All rewards of an experiment on one batch: columns, levels, failures, the worked example of the design."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.stack.aggregating import Schedule
from rlhf_cli.rewards.stack.component import Component, ScoreGate
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from tests.support.small_batches import BATCH, Counting


def test_names_and_columns_in_the_order_given_whatever_is_evaluated_first() -> None:
    stack = RewardStack(
        [Component("late", Counting(1, 2), gates=(ScoreGate("early"),)), Component("early", Counting(1, 2))]
    )
    assert stack.names == ["late", "early"]
    assert [column.__name__ for column in stack.columns()] == ["late", "early"]
    assert list(stack.evaluate(**BATCH)) == ["early", "late"]


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


class TestOneEvaluationABatch:
    def test_however_many_columns_are_asked(self, stack_of: Any) -> None:
        first, second, third = Counting(1, 2), Counting(3, 4), Counting(5, 6)
        stack = stack_of(first=first, second=second, third=third)
        one, two, three = stack.columns()
        with stack.batch():
            # not in the order of the columns, and one of them twice
            assert [two(**BATCH), one(**BATCH), three(**BATCH), two(**BATCH)] == [[3, 4], [1, 2], [5, 6], [3, 4]]
        assert [len(reward.calls) for reward in (first, second, third)] == [1, 1, 1]

    def test_nothing_of_a_batch_is_left_when_it_is_over(self, stack_of: Any) -> None:
        reward, other = Counting(1, 2), Counting(3, 4)
        stack = stack_of(one=reward, two=other)
        column = stack.columns()[0]
        with stack.batch():
            column(**BATCH)
        reward.scores, other.scores = [7, 8], [9]
        with pytest.raises(RewardError), stack.batch():
            column(**BATCH)
        other.scores = [9, 9]
        assert column(**BATCH) == [7.0, 8.0]


# The worked example of design.md, section 4, in the numbers written there.
