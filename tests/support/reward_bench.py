"""One reward function on four rows, and what its stack records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from rlhf_cli.rewards.stack.component import Component, RewardOutcome
from rlhf_cli.rewards.stack.reward_stack import RewardStack

BATCH: dict[str, Any] = {
    "prompts": ["zero", "one", "two", "three"],
    "completions": ["a", "b", "c", "d"],
    "completion_ids": [[1], [1, 2], [1, 2, 3], [4]],
    "row": [0, 1, 2, 3],
}

TWO_ROWS: dict[str, Any] = {"prompts": ["p", "p"], "completions": ["a", "bb"], "completion_ids": [[1], [2, 3]]}

Rows = list[int]


class Counting:
    """A reward that keeps its arguments."""

    def __init__(self, *scores: Any) -> None:
        self.scores = list(scores)
        self.calls: list[dict[str, Any]] = []

    def __call__(self, **batch: Any) -> list[Any]:
        self.calls.append(batch)
        return self.scores


class Bench:
    """Makes stacks and keeps what they record."""

    def __init__(self) -> None:
        self.recorded: list[dict[str, Any]] = []
        self.stacks: list[RewardStack] = []

    def stack(self, score: Callable[..., Any], **rules: Any) -> RewardStack:
        self.stacks.append(RewardStack([Component("mine", score, **rules)], record_error=self.recorded.append))
        return self.stacks[-1]

    def __call__(self, score: Callable[..., Any], **rules: Any) -> RewardOutcome:
        return self.stack(score, **rules).evaluate(**BATCH)["mine"]


def picky(bad: int, do: Callable[[], Any], is_async: bool = False) -> Callable[..., Any]:
    """Scores row i with 10 i; does something else where the row `bad` is among those asked for."""

    def reward(row: Rows, **_: Any) -> list[float]:
        if bad in row:
            answer = do()
            return [answer if index == bad else 10.0 * index for index in row]
        return [10.0 * index for index in row]

    async def later(row: Rows, **batch: Any) -> list[float]:
        await asyncio.sleep(0)
        return reward(row, **batch)

    return later if is_async else reward


def raises(error: BaseException) -> Callable[[], Any]:
    def do() -> Any:
        raise error

    return do
