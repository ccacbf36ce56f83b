"""All rewards of an experiment on one batch."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.stack import Component, RewardStack

BATCH: dict[str, Any] = {"prompts": ["p", "p"], "completions": ["a", "bb"], "completion_ids": [[1], [2, 3]]}


class Counting:
    """A reward that counts how often it is asked and remembers with what."""

    def __init__(self, *scores: Any) -> None:
        self.scores = list(scores)
        self.calls: list[dict[str, Any]] = []

    def __call__(self, **batch: Any) -> list[Any]:
        self.calls.append(batch)
        return self.scores


def stack_of(**rewards: Any) -> RewardStack:
    return RewardStack([Component(name, score, weight=1.0) for name, score in rewards.items()])


def test_one_score_a_row_in_the_order_of_the_components() -> None:
    stack = stack_of(length=lambda completions, **_: [len(text) for text in completions], none=Counting(None, 1))
    assert stack.evaluate(**BATCH) == {"length": [1.0, 2.0], "none": [None, 1.0]}
    assert list(stack.evaluate(**BATCH)) == ["length", "none"]
    stack.close()


def test_names_weights_and_columns() -> None:
    stack = RewardStack([Component("correct", Counting(), 1.0), Component("brevity", Counting(), 0.25)])
    assert stack.names == ["correct", "brevity"]
    assert stack.weights == [1.0, 0.25]
    assert [column.__name__ for column in stack.columns()] == ["correct", "brevity"]
    stack.close()


def test_a_batch_is_evaluated_once_however_many_columns_are_asked() -> None:
    first, second, third = Counting(1, 2), Counting(3, 4), Counting(5, 6)
    stack = stack_of(first=first, second=second, third=third)
    one, two, three = stack.columns()
    with stack.batch():
        # not in the order of the columns, and one of them twice
        assert [two(**BATCH), one(**BATCH), three(**BATCH), two(**BATCH)] == [[3, 4], [1, 2], [5, 6], [3, 4]]
    assert [len(reward.calls) for reward in (first, second, third)] == [1, 1, 1]
    stack.close()


def test_the_next_batch_is_evaluated_anew() -> None:
    reward = Counting(1, 2)
    stack = stack_of(one=reward)
    column = stack.columns()[0]
    for number in range(3):
        with stack.batch():
            column(**BATCH)
        assert len(reward.calls) == number + 1
        reward.scores = [7, 8]
    with stack.batch():
        assert column(**BATCH) == [7.0, 8.0]
    stack.close()


def test_nothing_of_a_batch_is_left_when_it_is_over() -> None:
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
    stack.close()


def test_every_component_sees_the_whole_batch() -> None:
    reward = Counting(1, 2)
    stack = stack_of(one=reward)
    batch = {**BATCH, "answer": ["x", "y"], "trainer_state": object(), "log_metric": print}
    stack.evaluate(**batch)
    assert reward.calls == [batch]
    stack.close()


def waits(seconds: float, *scores: float) -> Any:
    async def reward(**batch: Any) -> list[float]:
        await asyncio.sleep(seconds)
        return list(scores)

    return reward


def test_async_components_wait_together() -> None:
    stack = stack_of(one=waits(0.2, 1, 2), sync=Counting(3, 4), two=waits(0.2, 5, 6))
    started = time.perf_counter()
    assert stack.evaluate(**BATCH) == {"one": [1, 2], "sync": [3, 4], "two": [5, 6]}
    assert 0.2 <= time.perf_counter() - started < 0.35
    stack.close()


def test_async_components_keep_one_event_loop_between_batches() -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def reward(**batch: Any) -> list[float]:
        loops.append(asyncio.get_running_loop())
        return [1, 2]

    stack = stack_of(one=reward)
    stack.evaluate(**BATCH)
    stack.evaluate(**BATCH)
    assert loops[0] is loops[1]
    stack.close()
    assert loops[0].is_closed()


@pytest.mark.parametrize("is_async", [False, True])
def test_what_a_component_raises_passes_through(is_async: bool) -> None:
    class JudgeIsDownError(Exception):
        pass

    def raises(**batch: Any) -> list[float]:
        raise JudgeIsDownError("429")

    async def raises_later(**batch: Any) -> list[float]:
        raise JudgeIsDownError("429")

    stack = stack_of(fine=Counting(1, 2), broken=raises_later if is_async else raises)
    with pytest.raises(JudgeIsDownError, match="429"):
        stack.evaluate(**BATCH)
    stack.close()


def test_what_is_no_score_is_refused_by_name() -> None:
    stack = stack_of(fine=Counting(1, 2), broken=Counting(1))
    with pytest.raises(RewardError, match="reward 'broken' returned 1 values for 2 completions"):
        stack.evaluate(**BATCH)
    stack.close()
