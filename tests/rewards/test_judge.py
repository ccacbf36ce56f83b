"""The judge: its request, the score in its reply, and the cache of replies."""

from __future__ import annotations

import asyncio
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.errors import RewardError, ServerSilent
from rlhf_cli.rewards.judge import Judge, Rubric
from rlhf_cli.rewards.stack.reward_functions import required_columns
from tests.support.fake_server import Answer, reply, serving

KEY = "sk-do-not-tell-6f2a"
RUBRIC = "Q: {prompt}\nA: {completion}\nGold: {answer}"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "judge"


def score_of(text: str, **args: Any) -> Any:
    with serving(reply(text)) as server:
        judge = Judge(server.url, "m", "{completion}", **args)
        return asyncio.run(judge(prompts=["p"], completions=["c"]))[0]


def test_the_request_and_the_score_between_0_and_1() -> None:
    with serving(reply("Fine.\nScore: 8")) as server:
        url = server.url.removesuffix("/score") + "/v1/"
        judge = Judge(url, "gpt-x", RUBRIC, temperature=0.3, max_tokens=9, system="You judge.")
        scores = asyncio.run(judge(prompts=["1+1?"], completions=["2 {prompt}"], answer=[2], other=["x"]))
    assert scores == [0.8]
    assert server.asked[0].path == "/v1/chat/completions"
    assert server.asked[0].payload == {
        "model": "gpt-x",
        "temperature": 0.3,
        "max_tokens": 9,
        "messages": [
            {"role": "system", "content": "You judge."},
            {"role": "user", "content": "Q: 1+1?\nA: 2 {prompt}\nGold: 2"},
        ],
    }


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("Rating = 7.5", 0.75),
        ("Score: 1. No, on reflection Score: 9/10", 0.9),
        ("**Score**: 0", 0.0),
        ("SCORE:10", 1.0),
    ],
)
def test_replies_with_a_score(text: str, score: float) -> None:
    assert score_of(text) == score


@pytest.mark.parametrize("text", ["I would rather not say.", "", "Score: excellent", "10"])
def test_a_reply_without_a_score_raises(text: str, cache: Path) -> None:
    with pytest.raises(RewardError) as caught:
        score_of(text)
    assert (str(caught.value.where)[:5], caught.value.got) == ("row 0", text)
    assert not list(cache.rglob("*"))  # so the next call asks again


def test_equal_rows_make_one_request() -> None:
    with serving(reply("Score: 6")) as server:
        judge = Judge(server.url, "m", RUBRIC, cache=False)
        scores = asyncio.run(judge(prompts=["p"] * 4, completions=["a", "b", "a", "a"], answer=[1, 1, 1, None]))
    assert scores == [0.6, 0.6, 0.6, None]
    assert len(server.asked) == 2


def test_a_cached_reply_makes_no_request(cache: Path) -> None:
    def ask(**args: Any) -> None:
        judge = Judge(server.url, **({"model": "m", "rubric": "{completion}"} | args))
        assert asyncio.run(judge(prompts=["p"], completions=["c"])) == [0.5]

    with serving(reply("Score: 5")) as server:
        ask()
        ask()
        assert len(server.asked) == 1
        for other in (
            {"model": "n"},
            {"temperature": 1.0},
            {"rubric": "!{completion}"},
            {"max_tokens": 7},
            {"cache": False},
        ):
            ask(**other)
        assert len(server.asked) == 6
        ask(score_pattern=r"Score: (\d)")  # the pattern is not part of the request
        assert len(server.asked) == 6
        for file in cache.rglob("*.json"):
            file.write_text("{half a fi")
        ask()
        assert len(server.asked) == 7
    assert len([file for file in cache.rglob("*") if file.is_file()]) == 5


def test_the_key_is_sent_and_not_stored(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    with serving(reply("Score: 5"), reply("no")) as server:
        judge = Judge(server.url, "m", "{completion}", api_key_env="JUDGE_KEY")
        assert asyncio.run(judge(prompts=["p"], completions=["c"])) == [0.5]
        with pytest.raises(RewardError) as caught:
            asyncio.run(judge(prompts=["p"], completions=["d"]))
    assert [request.headers["Authorization"] for request in server.asked] == [f"Bearer {KEY}"] * 2
    kept = [file.read_text() for file in cache.rglob("*") if file.is_file()]
    assert len(kept) == 1
    for text in (*kept, str(caught.value), repr(judge), repr(vars(judge)), repr(pickle.dumps(judge))):
        assert KEY not in text


@pytest.mark.fault(35)
def test_a_judge_that_always_fails_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: low)
    with serving(Answer("", 503)) as server, pytest.raises(ServerSilent):
        asyncio.run(Judge(server.url, "m", "{completion}", retry_budget_s=0.4)(prompts=["p"], completions=["c"]))


def test_invalid_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    wrong: list[dict[str, Any]] = [
        {"scale": [10, 0]},
        {"scale": [1]},
        {"score_pattern": "("},
        {"score_pattern": "score"},
    ]
    for args in (*wrong, {"api_key_env": "JUDGE_KEY"}, {"rubric": "{prompt}"}):
        with pytest.raises(RewardError) as caught:
            Judge("http://127.0.0.1/", "m", **({"rubric": "{completion}"} | args))
        assert [caught.value.where] == [f"args.{name}" for name in args]


def test_rubrics() -> None:
    assert Rubric('{{"a": {completion}}}').fill({"completion": "{x}"}, 0) == '{"a": {x}}'
    for text, values, where in (
        ("{completion", {}, "args.rubric"),
        ("{completion}{gold}", {"completion": "x"}, "args.rubric"),
        ("{completion}{gold}", {"completion": "x", "gold": [1]}, "args.rubric, row 3"),
    ):
        with pytest.raises(RewardError) as caught:
            Rubric(text).fill(values, 3)
        assert caught.value.where == where


def test_every_row_may_bring_its_own_rubric() -> None:
    with serving(reply("Score: 5")) as server:
        judge = Judge(server.url, "m", "{rubric}\n\nAnswer: {completion}")
        rubrics = ["Is it short? {no field}", "Is it polite?", None]
        assert required_columns(judge) == ["rubric"]
        scores = asyncio.run(judge(prompts=["p"] * 3, completions=["a", "b", "c"], rubric=rubrics))
    assert scores == [0.5, 0.5, None]
    asked = {request.payload["messages"][0]["content"] for request in server.asked}
    assert asked == {"Is it short? {no field}\n\nAnswer: a", "Is it polite?\n\nAnswer: b"}
