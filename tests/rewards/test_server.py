"""The reward server's client."""

from __future__ import annotations

import asyncio
from datetime import date
from typing import Any

import pytest

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.server import RewardServer
from tests.support.fake_server import Answer, serving


def lengths(payload: Any) -> Answer:
    return Answer({"rewards": [None if text == "" else len(text) for text in payload["completions"]]})


def test_sends_rows_and_columns_gets_rewards() -> None:
    with serving(lengths) as server:
        reward = RewardServer(server.url)
        prompts = ["p", [{"role": "user", "content": "q"}]]
        from_trl = {"completion_ids": [[1], [2]], "trainer_state": object(), "log_metric": print}
        columns = {"day": [date(2025, 1, 1)] * 2, "share": [float("nan"), 1.0], "one": [1], "answer": [1, None]}
        scores = asyncio.run(reward(prompts, ["abc", ""], scalar=3, **from_trl, **columns))
    assert scores == [3, None]
    sent = {"share": [None, 1.0], "answer": [1, None]}
    assert server.asked[0].payload == {"prompts": prompts, "completions": ["abc", ""], "columns": sent}


def test_batches_keep_their_order() -> None:
    texts = ["x" * size for size in range(1, 8)]

    def slow_first(payload: Any) -> Answer:
        answer = lengths(payload)
        answer.after_s = 0.1 if payload["completions"][0] == "x" else 0.0
        return answer

    with serving(slow_first) as one, serving(slow_first) as two:
        reward = RewardServer([one.url, two.url], batch_size=3)
        assert asyncio.run(reward(prompts=[""] * 7, completions=texts, a=list(range(7)))) == [1, 2, 3, 4, 5, 6, 7]
        assert (len(one.asked), len(two.asked)) == (2, 1)
        asked = sorted((one.asked + two.asked), key=lambda request: request.payload["columns"]["a"])
    assert [request.payload["columns"]["a"] for request in asked] == [[0, 1, 2], [3, 4, 5], [6]]
    with serving(lengths) as server:
        asyncio.run(RewardServer(server.url)(prompts=[""] * 33, completions=["x"] * 33))
    assert sorted(len(request.payload["prompts"]) for request in server.asked) == [1, 32]


@pytest.mark.parametrize(
    ("answer", "got"),
    [
        ({"rewards": [1.0]}, "1 rewards"),
        ([1, 2], "[1, 2]"),
        ({"rewards": 1.0}, "{'rewards': 1.0}"),
        ({"rewards": "x" * 300}, "{'rewards': '" + "x" * 187),
        ({"rewards": [1, "two"]}, "'two' for row 3"),
        ({"rewards": [[1], 2]}, "[1] for row 2"),
    ],
)
def test_invalid_answers(answer: Any, got: str) -> None:
    with serving(lambda payload: Answer(answer if "c" in payload["completions"] else {"rewards": [0, 0]})) as server:
        reward = RewardServer(server.url, batch_size=2)
        with pytest.raises(RewardError) as caught:
            asyncio.run(reward(prompts=[""] * 4, completions=["a", "b", "c", "d"]))
    assert (caught.value.where, caught.value.got) == (server.url, got)
    assert "2 numbers" in str(caught.value.expected)
