"""All rewards of an experiment on one batch: columns, levels, failures, the worked example of the design."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlhf_cli.errors import RewardError
from rlhf_cli.numerics.group_advantages import scores_to_leave_out
from rlhf_cli.numerics.reward_columns import Fill
from rlhf_cli.rewards.stack.aggregating import Schedule
from rlhf_cli.rewards.stack.component import Component
from rlhf_cli.rewards.stack.gates import ScoreGate
from rlhf_cli.rewards.stack.reward_matrix import Settled, settle
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from tests.support.small_batches import BATCH, Counting
from tests.support.tolerances import ARITHMETIC


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

    def test_every_component_sees_the_whole_batch(self, stack_of: Any) -> None:
        reward = Counting(1, 2)
        batch = {**BATCH, "answer": ["x", "y"], "trainer_state": object(), "log_metric": print}
        stack_of(one=reward).evaluate(**batch)
        assert reward.calls == [batch]


# The worked example of design.md, section 4, in the numbers written there.

FOUR: dict[str, Any] = {"prompts": ["p"] * 4, "completions": ["w", "x", "y", "z"], "row": [0, 1, 2, 3]}


A, B = [1.0, 0.0, 1.0, 0.0], [0.5, 7.0, 0.1, 7.0]  # the 7s must never be seen


def worked(otherwise: Any, gates: bool = True, fill: Fill = "group") -> Settled:
    gate = (ScoreGate("a", low=1.0, otherwise=otherwise),) if gates else ()
    stack = RewardStack(
        [
            Component("a", lambda row, **_: [A[index] for index in row]),
            Component("b", lambda row, **_: [B[index] for index in row], gates=gate),
        ]
    )
    stack.evaluate(**FOUR)
    stack.close()
    nan = float("nan")
    outcomes = [stack.outcomes[name] for name in stack.names]
    raw = torch.tensor([[nan if value is None else value for value in outcome.raw] for outcome in outcomes]).T
    fixed = torch.tensor([[nan if value is None else value for value in outcome.fixed] for outcome in outcomes]).T
    weights = torch.tensor(stack.weights(0, 10))
    settled, _ = settle(
        raw,
        fixed,
        weights,
        stack.components,
        {},
        names=stack.names,
        aggregate="sum",
        num_generations=4,
        is_training=True,
        fill=fill,
    )
    return settled


def grpo(totals: list[float]) -> list[float]:
    return [total - sum(totals) / len(totals) for total in totals]


def rloo(totals: list[float]) -> list[float]:
    return [total - (sum(totals) - total) / (len(totals) - 1) for total in totals]


class TestWorkedExample:
    def test_zero(self) -> None:
        settled = worked(0.0)
        totals = (settled.for_trl * settled.trl_weights).nansum(dim=1).tolist()
        assert totals == pytest.approx([1.5, 0.0, 1.1, 0.0], **ARITHMETIC)
        assert grpo(totals) == pytest.approx([0.85, -0.65, 0.45, -0.65], **ARITHMETIC)
        # leave one out: 1.5 - 1.1/3, 0 - 2.6/3, 1.1 - 1.5/3, 0 - 2.6/3
        assert rloo(totals) == pytest.approx([1.1333333, -0.8666667, 0.6, -0.8666667], **ARITHMETIC)

    def test_exclude(self) -> None:
        settled = worked("exclude")
        totals = (settled.for_trl * settled.trl_weights).nansum(dim=1).tolist()
        assert totals == pytest.approx([1.5, 0.3, 1.1, 0.3], **ARITHMETIC)
        assert grpo(totals) == pytest.approx([0.7, -0.5, 0.3, -0.5], **ARITHMETIC)

    def test_exclude_under_rloo(self) -> None:
        """a: 1 - 1/3, 0 - 2/3, 1 - 1/3, 0 - 2/3; b where it applies: 0.5 - 0.1 and 0.1 - 0.5. No fill makes totals of
        which the plain formula leaves these: 0.3 in the gaps would give 0.9333, -0.6667, 0.4, -0.6667.
        """
        settled = worked("exclude", fill="zero")
        assert settled.totals.tolist() == pytest.approx([1.5, 0.0, 1.1, 0.0], **ARITHMETIC)
        totals = scores_to_leave_out(settled.unfilled, 4).sum(dim=1).tolist()
        assert rloo(totals) == pytest.approx([2 / 3 + 0.4, -2 / 3, 2 / 3 - 0.4, -2 / 3], **ARITHMETIC)

    def test_negative_control_ungated(self) -> None:
        totals = worked(0.0, gates=False).for_trl.sum(dim=1).tolist()
        assert totals == pytest.approx([1.5, 7.0, 1.1, 7.0], **ARITHMETIC)
