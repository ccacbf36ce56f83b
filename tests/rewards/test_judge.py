"""Judges: one answer or all answers of a prompt in a request, the score in the reply, and the cache of replies."""

from __future__ import annotations

import asyncio
import functools
import pickle
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.errors import RewardError, ServerSilent
from rlhf_cli.project.reward_reference import worked_examples
from rlhf_cli.rewards.judge import Judge, prompt_text
from rlhf_cli.rewards.judge_ranking import RankingJudge
from rlhf_cli.rewards.server import RewardServer
from rlhf_cli.rewards.stack.component import Component
from rlhf_cli.rewards.stack.reward_functions import compares_rows, required_columns
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from tests.support.fake_server import Answer, FakeServer, reply, serving

KEY = "sk-do-not-tell-6f2a"
RUBRIC = "Q: {prompt}\nA: {completion}\nGold: {answer}"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "judge"


def raise_first(scores: Sequence[object]) -> None:
    """Raise the first failed row's error."""
    for score in scores:
        if isinstance(score, RewardError):
            raise score


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
        ('{"score": 8, "why": "clear"}', 0.8),
        ("Score (0-10): 7", 0.7),
        ("<think>Perhaps score: 3 for style.</think>Score: 9", 0.9),
    ],
)
def test_replies_with_a_score(text: str, score: float) -> None:
    with serving(reply(text)) as server:
        judge = Judge(server.url, "m", "{completion}")
        assert asyncio.run(judge(prompts=["p"], completions=["c"])) == [score]


UNREAD = ["", "Score: excellent", "10", "x" * 300, "<think>Perhaps score: 3, or ranking: 1 > 2 for"]


@pytest.mark.parametrize(
    ("text", "shown"), [*zip(UNREAD, UNREAD, strict=True), ("b" * 151 + "e" * 150, "b" * 150 + " ... " + "e" * 150)]
)
@pytest.mark.parametrize(("finish", "advice"), [("stop", "rubric"), ("length", "args.max_tokens")])
def test_a_reply_that_cannot_be_read_raises(text: str, shown: str, finish: str, advice: str, cache: Path) -> None:
    with serving(reply(text, finish)) as server:
        judges = Judge(server.url, "m", "{completion}"), RankingJudge(server.url, "m", "{completions}")
        for judge, rows in zip(judges, (["c"], ["c", "d"]), strict=True):
            with pytest.raises(RewardError) as caught:
                raise_first(asyncio.run(judge(prompts=["p"] * len(rows), completions=rows)))
            assert (str(caught.value.where)[:5], caught.value.got) == ("row 0", shown)
            assert advice in str(caught.value.advice)
    assert not list(cache.rglob("*"))  # so the next call asks again


@pytest.mark.parametrize(
    ("make", "timeout_s", "retry_budget_s"),
    [
        (functools.partial(Judge, model="m", rubric="{completion}"), 60.0, 120.0),
        (functools.partial(RankingJudge, model="m", rubric="{completions}"), 60.0, 120.0),
        (RewardServer, 30.0, 60.0),
    ],
    ids=["judge", "judge_ranking", "reward_server"],
)
def test_the_documented_limits_of_requests(make: Any, timeout_s: float, retry_budget_s: float) -> None:
    names, others = ("timeout_s", "retry_budget_s", "max_concurrency"), (1.5, 2.5, 3)
    for given, expected in ({}, (timeout_s, retry_budget_s, 8)), (dict(zip(names, others, strict=True)), others):
        client = make("http://127.0.0.1/", **given)._client
        assert tuple(getattr(client, name) for name in names) == expected


def test_a_cached_reply_makes_no_request(cache: Path) -> None:
    def ask(**args: Any) -> None:
        judge = Judge(server.url, **({"model": "m", "rubric": "{completion}"} | args))
        assert asyncio.run(judge(prompts=["p"], completions=["c"])) == [0.5]

    with serving(reply("Score: 5")) as server:
        ask()
        ask()
        (asked,) = server.asked
        told = [{"role": "user", "content": "c"}]
        assert asked.payload == {"model": "m", "temperature": 0, "max_tokens": 256, "messages": told}
        others = {"model": "n", "temperature": 1.0, "rubric": "!{completion}", "max_tokens": 7, "cache": False}
        for name, value in others.items():
            ask(**{name: value})
        assert len(server.asked) == 6
        ask(score_pattern=r"Score: (\d)")  # the pattern is not part of the request
        ask(scale=[4, 6])  # nor is the scale
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


@pytest.mark.parametrize("text", ["Score: 11", "Score: -1"])
def test_a_score_beyond_the_scale_raises(text: str) -> None:
    with serving(reply(text)) as server, pytest.raises(RewardError) as caught:
        asyncio.run(Judge(server.url, "m", "{completion}")(prompts=["p"], completions=["c"]))
    assert caught.value.got == text


@pytest.mark.fault(35)
def test_a_judge_that_always_fails_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: low)
    with serving(Answer("", 503)) as server, pytest.raises(ServerSilent):
        asyncio.run(Judge(server.url, "m", "{completion}", retry_budget_s=0.4)(prompts=["p"], completions=["c"]))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("scale", scale) for scale in ([10, 0], [1], [1, 1])),
        *(("score_pattern", pattern) for pattern in ("(", "score")),
        *(("rubric", text) for text in ("{prompt}", "{completion} {two words}")),
        ("api_key_env", "JUDGE_KEY"),
    ],
)
def test_invalid_arguments(monkeypatch: pytest.MonkeyPatch, name: str, value: Any) -> None:
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    with pytest.raises(RewardError) as caught:
        Judge("http://127.0.0.1/", "m", **({"rubric": "{completion}"} | {name: value}))
    assert caught.value.where == f"args.{name}"
    if name in ("scale", "score_pattern"):
        with pytest.raises(TypeError):  # a ranking takes no arguments of scores
            RankingJudge("http://127.0.0.1/", "m", "{completions}", **{name: value})


def test_rubrics() -> None:
    asked = [{"role": "system", "content": "Be short."}, {"content": "1+1?"}]
    assert [prompt_text(prompt) for prompt in ("p", asked[1:], asked)] == ["p", "1+1?", "system: Be short.\nuser: 1+1?"]
    assert Judge("http://127.0.0.1/", "m", '{{"a": {completion}}}')._filled({"completion": "{x}"}, 0) == '{"a": {x}}'
    for text, values, where in (
        ("{completion", {}, "args.rubric"),
        ("{completion}{gold}", {"completion": "x", "gold": [1]}, "args.rubric, row 3"),
    ):
        with pytest.raises(RewardError) as caught:
            Judge("http://127.0.0.1/", "m", text)._filled(values, 3)
        assert caught.value.where == where


def test_every_row_may_bring_its_own_rubric_and_equal_rows_make_one_request() -> None:
    rubrics = ["Is it short? {no field}", "Is it polite?", "Is it polite?", None]
    with serving(reply("Score: 5")) as server:
        judge = Judge(server.url, "m", "{rubric}\n\nAnswer: {completion}", cache=False)
        assert required_columns(judge) == ["rubric"]
        found = asyncio.run(judge(prompts=["p"] * 4, completions=["a", "b", "b", "c"], rubric=rubrics))
    assert found == [0.5, 0.5, 0.5, None]
    asked = sorted(request.payload["messages"][0]["content"] for request in server.asked)
    assert asked == ["Is it polite?\n\nAnswer: b", "Is it short? {no field}\n\nAnswer: a"]


RANKING = "Q: {prompt}\n{completions}\nGold: {answer}"
PROMPTS, TEXTS = ["p", "q", "p", "p", "q", "p", "r"], ["bb", "x", "a", "ccc", "x", "a", "alone"]


def listed(payload: Any) -> dict[int, str]:
    """The numbered answers of a request."""
    return {int(number): text for number, text in re.findall(r"\[(\d+)\] (\w+)", payload["messages"][-1]["content"])}


def longest_first(payload: Any) -> Answer:
    answers = listed(payload)
    order = sorted(answers, key=lambda number: -len(answers[number]))
    named = [f"[{number}]" if number % 2 else str(number) for number in order]  # as the rubric lists them, or alone
    return reply("I think.\nRanking: " + " > ".join(named))


def scores(server: FakeServer, order: list[int], **args: Any) -> list[float | None]:
    judge = RankingJudge(server.url, "m", **{"rubric": RANKING, **args})
    rows = {"prompts": [PROMPTS[row] for row in order], "completions": [TEXTS[row] for row in order]}
    some: Any = asyncio.run(judge(**rows, answer=[1] * len(order)))
    raise_first(some)
    return [some[order.index(row)] for row in sorted(order)]


def test_all_answers_of_a_prompt_are_one_request_in_any_order_and_equal_ones_share_a_rank() -> None:
    with serving(longest_first) as server:
        found = scores(server, list(range(7)))
        assert found == [0.5, None, 0.0, 1.0, None, 0.0, None]  # q has no other answer, r no second one
        assert [*listed(server.asked[0].payload).values()] == ["bb", "ccc", "a"]  # neither by sampling nor by alphabet
        assert server.asked[0].payload["messages"][0]["content"].startswith("Q: p\n[1] ")
        assert scores(server, [3, 6, 0, 2, 5, 1, 4]) == found
        assert scores(server, [0, 2, 3]) == [0.5, 0.0, 1.0]
        assert len(server.asked) == 1  # the others were in the cache
        assert scores(server, [0, 2]) == [1.0, 0.0]  # negative control: another set of answers
    assert len(server.asked) == 2


@pytest.mark.parametrize("text", ["Ranking: 1 > 2", "Ranking: 1 > 2 > 2", "Ranking: 0 > 1 > 2", "1, 2, 3", "Best:"])
def test_a_reply_that_is_no_ranking_raises(text: str) -> None:
    args = {"ranking_pattern": r"Best:(.+)?"} if text == "Best:" else {}
    with serving(reply(text)) as server, pytest.raises(RewardError) as caught:
        scores(server, list(range(7)), **args)
    assert str(caught.value.where)[:5] == "row 0"


@pytest.mark.parametrize("text", ["**Ranking**: [3, 2, 1]", "ranking: 1>2>3\nNo. Order: 3 > 2 > 1"])
def test_forms_of_a_ranking(text: str) -> None:
    with serving(reply(text)) as server:
        found = scores(server, list(range(7)))
    numbers = {answer: number for number, answer in listed(server.asked[0].payload).items()}
    assert [found[row] for row in (0, 2, 3)] == [{3: 1.0, 2: 0.5, 1: 0.0}[numbers[TEXTS[row]]] for row in (0, 2, 3)]


def test_a_reply_that_is_no_ranking_costs_the_rows_of_its_prompt_only() -> None:
    """A single row of a prompt gets no rank in a second request, so no row had one, and no failure counted."""
    with serving(lambda payload: reply(f"Ranking: {'2 > 1' if 'Q: p' in str(payload) else 'none'}")) as server:
        judge = RankingJudge(server.url, "m", "Q: {prompt} {completions}")
        stack = RewardStack([Component("judge", judge, on_error="exclude")])
        outcome = stack.evaluate(prompts=["p", "p", "q", "q"], completions=["a", "b", "a", "b"])["judge"]
        stack.close()
    assert (sorted(map(str, outcome.raw[:2])), outcome.raw[2:]) == (["0.0", "1.0"], [None, None])
    assert [message is None for message in outcome.errors] == [True, True, False, False]


def test_a_rubric_needs_the_completions_and_its_columns_are_required() -> None:
    with pytest.raises(RewardError):
        RankingJudge("http://x", "m", "{prompt} {completion}")
    assert required_columns(RankingJudge("http://x", "m", RANKING)) == ["answer"]
    assert compares_rows(RankingJudge("http://x", "m", RANKING))
    assert not compares_rows(Judge("http://x", "m", "{completion}"))
    judge = RankingJudge("http://x", "m", RANKING)  # no server is there
    assert asyncio.run(judge(prompts=["p"] * 2, completions=["a", "b"], answer=[None, None])) == [None, None]


def test_the_worked_example() -> None:
    example = worked_examples()["judge_ranking"]
    with serving(reply(str(example.rows[0]["reply"]))) as server:
        judge = RankingJudge(server.url, "m", "{prompt} {completions}")
        texts = [str(row["completion"]) for row in example.rows]
        found = asyncio.run(judge(prompts=[str(example.prompt)] * 2, completions=texts))
    assert found == [row["score"] for row in example.rows]
