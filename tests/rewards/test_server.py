"""The reward server's client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.server import RewardServer
from tests.support.fake_server import Answer, serving


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as one:
        yield one


def lengths(payload: Any) -> Answer:
    return Answer({"rewards": [None if text == "" else len(text) for text in payload["completions"]]})


def test_sends_rows_and_columns_gets_rewards(runner: asyncio.Runner) -> None:
    with serving(lengths) as server:
        reward = RewardServer(server.url)
        prompts = ["p", [{"role": "user", "content": "q"}]]
        scores = runner.run(
            reward(
                prompts=prompts,
                completions=["abc", ""],
                completion_ids=[[1], [2]],
                trainer_state=object(),
                log_metric=print,
                answer=[1, None],
                day=[date(2025, 1, 1)] * 2,
                scalar=3,
            )
        )
    assert scores == [3, None]
    assert server.asked[0].payload == {"prompts": prompts, "completions": ["abc", ""], "columns": {"answer": [1, None]}}


def test_batches_keep_their_order(runner: asyncio.Runner) -> None:
    texts = ["x" * size for size in range(1, 8)]

    def slow_first(payload: Any) -> Answer:
        answer = lengths(payload)
        answer.after_s = 0.1 if payload["completions"][0] == "x" else 0.0
        return answer

    with serving(slow_first) as one, serving(slow_first) as two:
        reward = RewardServer([one.url, two.url], batch_size=3)
        assert runner.run(reward(prompts=[""] * 7, completions=texts, a=list(range(7)))) == [1, 2, 3, 4, 5, 6, 7]
        asked = sorted((one.asked + two.asked), key=lambda request: request.payload["columns"]["a"])
    assert [request.payload["columns"]["a"] for request in asked] == [[0, 1, 2], [3, 4, 5], [6]]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"rewards": [1.0]}, "1 rewards to 2 completions"),
        ({"scores": [1, 2]}, "no list of rewards"),
        ([1, 2], "no list of rewards"),
        ({"rewards": 1.0}, "no list of rewards"),
        ({"rewards": [1, "two"]}, "no number for row 3"),
        ({"rewards": [[1], 2]}, "no number for row 2"),
    ],
)
def test_answers_that_will_not_do(answer: Any, said: str, runner: asyncio.Runner) -> None:
    with serving(lambda payload: Answer(answer if "c" in payload["completions"] else {"rewards": [0, 0]})) as server:
        reward = RewardServer(server.url, batch_size=2)
        with pytest.raises(RewardError, match=said) as caught:
            runner.run(reward(prompts=[""] * 4, completions=["a", "b", "c", "d"]))
    assert server.url in str(caught.value)
