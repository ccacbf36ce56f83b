"""The judge: what it is asked, how its reply is read, what is kept of it."""

from __future__ import annotations

import asyncio
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.judge import Judge, Rubric
from tests.support.fake_server import Answer, reply, serving

KEY = "sk-do-not-tell-6f2a"
RUBRIC = "Q: {prompt}\nA: {completion}\nGold: {answer}"


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as one:
        yield one


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "judge"


def score_of(text: str, runner: asyncio.Runner, **args: Any) -> Any:
    with serving(reply(text)) as server:
        judge = Judge(server.url, "m", "{completion}", **args)
        return runner.run(judge(prompts=["p"], completions=["c"]))[0]


def test_asks_and_maps_to_the_unit(runner: asyncio.Runner) -> None:
    with serving(reply("Fine.\nScore: 8")) as server:
        url = server.url.removesuffix("/score") + "/v1/"
        judge = Judge(url, "gpt-x", RUBRIC, temperature=0.3, max_tokens=9, system="You judge.")
        scores = runner.run(judge(prompts=["1+1?"], completions=["2 {prompt}"], answer=[2], other=["x"]))
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
def test_replies_that_hold_a_score(text: str, score: float, runner: asyncio.Runner) -> None:
    assert score_of(text, runner) == score


@pytest.mark.parametrize("text", ["I would rather not say.", "", "Score: excellent", "10"])
def test_a_reply_without_a_score_raises(text: str, runner: asyncio.Runner, cache: Path) -> None:
    with pytest.raises(RewardError, match="holds no score") as caught:
        score_of(text, runner)
    assert "row 0" in str(caught.value)
    assert text in str(caught.value)
    assert not list(cache.rglob("*"))  # and is asked for again next time


def test_equal_rows_are_asked_once(runner: asyncio.Runner) -> None:
    with serving(reply("Score: 6")) as server:
        judge = Judge(server.url, "m", RUBRIC, cache=False)
        scores = runner.run(judge(prompts=["p"] * 4, completions=["a", "b", "a", "a"], answer=[1, 1, 1, None]))
    assert scores == [0.6, 0.6, 0.6, None]
    assert len(server.asked) == 2


def test_what_was_answered_is_not_asked_again(runner: asyncio.Runner, cache: Path) -> None:
    def ask(**args: Any) -> None:
        judge = Judge(server.url, **({"model": "m", "rubric": "{completion}"} | args))
        assert runner.run(judge(prompts=["p"], completions=["c"])) == [0.5]

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
        ask(score_pattern=r"Score: (\d)")  # how the reply is read is no part of the question
        assert len(server.asked) == 6
        for file in cache.rglob("*.json"):
            file.write_text("{half a fi")
        ask()
        assert len(server.asked) == 7
    assert len([file for file in cache.rglob("*") if file.is_file()]) == 5


def test_the_key_is_sent_and_kept_nowhere(runner: asyncio.Runner, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    with serving(reply("Score: 5"), reply("no")) as server:
        judge = Judge(server.url, "m", "{completion}", api_key_env="JUDGE_KEY")
        assert runner.run(judge(prompts=["p"], completions=["c"])) == [0.5]
        with pytest.raises(RewardError) as caught:
            runner.run(judge(prompts=["p"], completions=["d"]))
    assert [request.headers["Authorization"] for request in server.asked] == [f"Bearer {KEY}"] * 2
    kept = [file.read_text() for file in cache.rglob("*") if file.is_file()]
    assert len(kept) == 1
    for text in (*kept, str(caught.value), repr(judge), repr(vars(judge)), repr(pickle.dumps(judge))):
        assert KEY not in text


@pytest.mark.fault(35)
def test_a_judge_that_fails_for_ever_raises(runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: low)
    with serving(Answer("", 503)) as server, pytest.raises(RewardError, match="retry_budget_s"):
        runner.run(Judge(server.url, "m", "{completion}", retry_budget_s=0.4)(prompts=["p"], completions=["c"]))


def test_arguments_that_will_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    for args, said in (
        ({"scale": [10, 0]}, "no scale"),
        ({"scale": [1]}, "no scale"),
        ({"score_pattern": "("}, "no regular expression"),
        ({"score_pattern": "score"}, "no group"),
        ({"api_key_env": "JUDGE_KEY"}, "JUDGE_KEY is not set"),
        ({"rubric": "{prompt}"}, "does not show the judge the completion"),
    ):
        with pytest.raises(RewardError, match=said):
            Judge("http://127.0.0.1/", "m", **({"rubric": "{completion}"} | args))


def test_rubrics() -> None:
    assert Rubric('{{"a": {completion}}}').fill({"completion": "{x}"}, 0) == '{"a": {x}}'
    with pytest.raises(RewardError, match="malformed"):
        Rubric("{completion")
    with pytest.raises(RewardError, match="no column 'gold'"):
        Rubric("{completion}{gold}").fill({"completion": "x"}, 0)
    with pytest.raises(RewardError, match="cannot be put into a rubric"):
        Rubric("{completion}{gold}").fill({"completion": "x", "gold": [1]}, 3)
