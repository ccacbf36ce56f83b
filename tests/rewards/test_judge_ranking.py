"""The judge that ranks all answers of a prompt in one request."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.errors import RewardError
from rlhf_cli.project.reward_reference import worked_examples
from rlhf_cli.rewards.judge_ranking import RankingJudge
from rlhf_cli.rewards.stack.reward_functions import required_columns
from tests.support.fake_server import Answer, FakeServer, reply, serving

RUBRIC = "Q: {prompt}\n{completions}\nGold: {answer}"
PROMPTS, TEXTS = ["p", "q", "p", "p", "q", "p", "r"], ["bb", "x", "a", "ccc", "x", "a", "alone"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "judge"


def listed(payload: Any) -> dict[int, str]:
    """The numbered answers of a request."""
    return {int(number): text for number, text in re.findall(r"\[(\d+)\] (\w+)", payload["messages"][-1]["content"])}


def longest_first(payload: Any) -> Answer:
    answers = listed(payload)
    order = sorted(answers, key=lambda number: -len(answers[number]))
    return reply("I think.\nRanking: " + " > ".join(map(str, order)))


def scores(server: FakeServer, order: list[int], **args: Any) -> list[float | None]:
    judge = RankingJudge(server.url, "m", **{"rubric": RUBRIC, **args})
    some = asyncio.run(
        judge(
            prompts=[PROMPTS[row] for row in order], completions=[TEXTS[row] for row in order], answer=[1] * len(order)
        )
    )
    return [some[order.index(row)] for row in sorted(order)]


def test_all_answers_of_a_prompt_are_one_request_and_equal_ones_share_a_rank() -> None:
    with serving(longest_first) as server:
        found = scores(server, list(range(7)))
    assert found == [0.5, None, 0.0, 1.0, None, 0.0, None]  # q has no other answer, r no second one
    (asked,) = server.asked
    assert sorted(listed(asked.payload).values()) == ["a", "bb", "ccc"]
    assert asked.payload["messages"][0]["content"].startswith("Q: p\n[1] ")


def test_neither_the_order_of_sampling_nor_the_other_prompts_change_the_request() -> None:
    with serving(longest_first) as server:
        assert scores(server, [3, 6, 0, 2, 5, 1, 4]) == scores(server, list(range(7)))
        assert scores(server, [0, 2, 3]) == [0.5, 0.0, 1.0]
        assert len(server.asked) == 1  # the others were in the cache
        assert scores(server, [0, 2]) == [1.0, 0.0]  # negative control: another set of answers
    assert len(server.asked) == 2


@pytest.mark.parametrize("text", ["", "Ranking: 1 > 2", "Ranking: 1 > 2 > 2", "Ranking: 0 > 1 > 2", "1, 2, 3"])
def test_a_reply_that_is_no_ranking_raises_and_is_not_kept(text: str, cache: Path) -> None:
    with serving(reply(text)) as server, pytest.raises(RewardError) as caught:
        scores(server, list(range(7)))
    assert str(caught.value.where)[:5] == "row 0"
    assert not list(cache.rglob("*"))


@pytest.mark.parametrize("text", ["**Ranking**: [3, 2, 1]", "ranking: 1>2>3\nNo. Order: 3 > 2 > 1"])
def test_forms_of_a_ranking(text: str) -> None:
    with serving(reply(text)) as server:
        found = scores(server, list(range(7)))
    numbers = {answer: number for number, answer in listed(server.asked[0].payload).items()}
    assert [found[row] for row in (0, 2, 3)] == [{3: 1.0, 2: 0.5, 1: 0.0}[numbers[TEXTS[row]]] for row in (0, 2, 3)]


def test_a_rubric_needs_the_completions_and_its_columns_are_required(cache: Path) -> None:
    with pytest.raises(RewardError):
        RankingJudge("http://x", "m", "{prompt} {completion}")
    assert required_columns(RankingJudge("http://x", "m", RUBRIC)) == ["answer"]
    with serving(longest_first) as server:
        judge = RankingJudge(server.url, "m", RUBRIC)
        assert asyncio.run(judge(prompts=["p"] * 2, completions=["a", "b"], answer=[None, None])) == [None, None]
    assert server.asked == []


def test_the_worked_example() -> None:
    example = worked_examples()["judge_ranking"]
    with serving(reply(str(example.rows[0]["reply"]))) as server:
        judge = RankingJudge(server.url, "m", "{prompt} {completions}")
        texts = [str(row["completion"]) for row in example.rows]
        found = asyncio.run(judge(prompts=[str(example.prompt)] * 2, completions=texts))
    assert found == [row["score"] for row in example.rows]
