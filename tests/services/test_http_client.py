"""The client retries, waits, takes turns between servers, and shows its key to the server only."""

from __future__ import annotations

import asyncio
import gzip
import logging
import os
import pickle
import random
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import httpx2
import pytest
import tenacity

from rlhf_cli.errors import RewardError, ServerSilent
from rlhf_cli.launch.rollout_server import free_ports
from rlhf_cli.services import http_client
from rlhf_cli.services.http_client import JsonClient, ReplyCache, together
from tests.support.fake_server import Answer, serving

KEY = "sk-do-not-tell-6f2a"
OK = Answer({"fine": True})


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the waits between tries in seconds. Only they take time, none really waits, and jitter has its maximum."""
    waited: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        await real(0)

    monkeypatch.setattr(http_client.asyncio, "sleep", sleep)
    for module in (http_client, tenacity):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: sum(waited), time=time.time))
    monkeypatch.setattr(random, "uniform", lambda low, high: low + high)
    return waited


async def posting(client: JsonClient, payload: object) -> object:
    async with client.session() as post:
        return await post(payload)


def busy(status: int, asked_s: float = 0) -> Answer:
    return Answer({"error": "it is broken"}, status, {"Retry-After": str(asked_s)})


@pytest.mark.fault(35)
@pytest.mark.parametrize(
    ("answers", "expected", "told"),
    [
        ([busy(429, 3), *[busy(503)] * 7, OK], [3, 1, 2, 4, 8, 16, 20, 20], ["up to 1000 s", "up to 966 s"]),
        ([busy(429, 30), busy(503), busy(500), OK], [30, 1, 2], ["up to 1000 s", "up to 969 s"]),
    ],
)
def test_the_wait_doubles_up_to_a_limit_and_is_at_least_what_the_server_asks_for(
    answers: list[Answer], expected: list[float], told: list[str], waits: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """The notice comes at most every thirty seconds."""
    with serving(*answers) as server:
        assert asyncio.run(posting(JsonClient(server.url, retry_budget_s=1000), {})) == {"fine": True}
        assert (waits, len(server.asked)) == (expected, len(answers))
    assert [text in message for text, message in zip(told, caplog.messages, strict=True)] == [True] * len(told)


@pytest.mark.fault(35)
@pytest.mark.parametrize(
    ("answer", "budget_s", "expected", "got"),
    [
        (busy(500), 1.2, [0.5], ["500 Internal Server Error", "it is broken"]),
        (busy(503, 20), 20, [], ["503"]),
        (busy(503, 21), 20, [], ["a wait of 21 s"]),
        (None, 2, [0.5, 1.0], ["Connect"]),
    ],
)
def test_a_server_is_tried_until_the_budget_ends_and_not_waited_for_beyond_it(
    answer: Answer | None, budget_s: float, expected: list[float], got: list[str], waits: list[float]
) -> None:
    with serving(answer or OK) as server:
        url = server.url if answer else f"http://127.0.0.1:{free_ports(1)[0]}/"
        with pytest.raises(ServerSilent) as caught:
            asyncio.run(posting(JsonClient(url, retry_budget_s=budget_s), {}))
    assert (waits, caught.value.where) == (expected, url)
    assert [text in str(caught.value.got) for text in got] == [True] * len(got)
    assert ("a wait of" in str(caught.value.got)) == ("a wait of 21 s" in got)


@pytest.mark.fault(35)
def test_a_try_ends_after_its_own_time_and_with_the_budget(waits: list[float]) -> None:
    with serving(Answer({}, after_s=0.5), OK) as server:
        assert asyncio.run(posting(JsonClient(server.url, timeout_s=0.1), {})) == {"fine": True}
    with serving(Answer({}, after_s=0.5)) as server, pytest.raises(ServerSilent):
        asyncio.run(posting(JsonClient(server.url, retry_budget_s=0.1), {}))


@pytest.mark.fault(35)
@pytest.mark.parametrize(
    ("asked", "expected_s"),
    [
        *(("2.5", 2.5), ("", 0.0), ("soon", 0.0), ("-5", 0.0), ("inf", 0.0), ("nan", 0.0)),
        *(("Sun, 09 Sep 2001 01:46:49 GMT", 9.0), ("Sun, 09 Sep 2001 01:46:31 GMT", 0.0)),
    ],
)
def test_a_wait_is_asked_for_in_seconds_or_as_a_date(
    asked: str, expected_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client.time, "time", lambda: 1e9)  # at 01:46:40
    answer = httpx2.Response(429, headers={"Retry-After": asked})
    assert http_client._retry_after(answer) == expected_s


def test_a_refusal_is_not_retried() -> None:
    refusal = Answer({"detail": "no field `completions`"}, 422)
    with serving(refusal) as server, pytest.raises(RewardError) as caught:
        asyncio.run(posting(JsonClient(server.url), {}))
    assert (caught.value.where, "no field `completions`" in str(caught.value.got)) == (server.url, True)
    assert caught.value.hint is None
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("content", "got"), [(b"", "nothing"), (b"oops", "oops"), (b"\xff", "\ufffd"), (b"x" * 300, "x" * 200)]
)
def test_an_answer_that_is_not_json_is_shown(content: bytes, got: str) -> None:
    with serving(Answer(content)) as server, pytest.raises(RewardError) as caught:
        asyncio.run(posting(JsonClient(server.url), {}))
    assert (caught.value.where, caught.value.got) == (server.url, got)


def test_another_server_is_asked_without_a_wait(waits: list[float]) -> None:
    with serving(Answer("", 429, {"Retry-After": "30"})) as busy, serving(OK) as idle:
        client = JsonClient([busy.url, f"http://127.0.0.1:{free_ports(1)[0]}/", idle.url])
        assert asyncio.run(posting(client, {})) == {"fine": True}
        assert (len(busy.asked), len(idle.asked)) == (1, 1)
    assert waits == [0.0, 0.0]


def test_the_wait_doubles_after_every_server_was_asked(waits: list[float]) -> None:
    with serving(busy(503), busy(503), OK) as one, serving(busy(503)) as two:
        assert asyncio.run(posting(JsonClient([one.url, two.url]), {})) == {"fine": True}
    assert waits == [0.0, 0.5, 0.0, 1.0]


def test_servers_are_asked_in_turn() -> None:
    with serving(OK, OK) as one, serving(OK) as two, serving(OK) as three:
        client = JsonClient([one.url, two.url, three.url])
        for turn in range(4):
            asyncio.run(posting(client, {}))
            assert [len(server.asked) for server in (one, two, three)] == [1 + turn // 3, turn > 0, turn > 1]


def test_concurrent_requests_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    async def many(client: JsonClient) -> None:
        async with client.session() as post:
            await together([post({}) for _ in range(9)])

    made = Mock(wraps=httpx2.AsyncClient)
    monkeypatch.setattr(httpx2, "AsyncClient", made)
    with serving(Answer({}, after_s=0.05)) as server:
        asyncio.run(many(JsonClient(server.url, max_concurrency=3)))
        assert (server.at_once, len(server.asked)) == (3, 9)
    # httpx has limits of its own: 100 connections, and five seconds.
    assert (made.call_args.kwargs["limits"].max_connections, made.call_args.kwargs["timeout"]) == (3, None)


def test_the_key_goes_to_the_server_only(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []

    def echo(payload: object) -> Answer:
        return Answer({"you sent": f"Bearer {KEY * 40}"}, payload["status"])  # type: ignore[index]

    with serving(echo) as server:
        client = JsonClient(server.url + "?token=hidden", api_key_env="MY_KEY", retry_budget_s=0.2)
        for status in (401, 403, 500):
            with pytest.raises(RewardError) as caught:
                asyncio.run(posting(client, {"status": status}))
            shown.append(f"{caught.value} {caught.value!r} {caught.value.__dict__}")
        assert all(request.headers["Authorization"] == f"Bearer {KEY}" for request in server.asked)
    assert ["***" in text for text in shown] == [True] * 3
    assert ["export MY_KEY=..." in text for text in shown] == [True, True, False]
    shown += [repr(client), repr(vars(client)), caplog.text]
    assert not any(KEY[:4] in text for text in shown)  # nor the first half of one, where the answer is cut
    assert not any("hidden" in text for text in [*shown[:3], repr(client)])
    assert KEY.encode() not in pickle.dumps(client)


@pytest.mark.parametrize("value", [None, "  ", "schlüssel", "two\nlines"])
@pytest.mark.fault(35)
def test_a_key_that_is_missing_or_cannot_be_sent_is_refused_at_once(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("MY_KEY", value)
    with pytest.raises(RewardError) as caught:
        JsonClient("http://127.0.0.1/", api_key_env="MY_KEY")
    assert (caught.value.where, caught.value.hint) == ("args.api_key_env", "export MY_KEY=...")


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("http://h:1", "http://h:1/v1/chat"),
        ("http://h:1/a/", "http://h:1/a/v1/chat"),
        ("http://h:1/a/v1/chat", "http://h:1/a/v1/chat"),
        ("http://h:1/v1/chat/", "http://h:1/v1/chat/"),
    ],
)
def test_a_client_has_the_settings_of_its_reward(url: str, asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its path, where the URL does not end in it."""
    monkeypatch.setenv("MY_KEY", KEY)
    given = {"api_key_env": "MY_KEY", "timeout_s": 1.5, "retry_budget_s": 2.5, "max_concurrency": 3}
    client = JsonClient.of(SimpleNamespace(url=url, **given), path="/v1/chat")
    assert client.urls == [asked]
    assert {name: getattr(client, name) for name in given} == given


def test_what_json_lacks_is_not_sent() -> None:
    with serving(OK) as server:
        for value in (float("nan"), float("inf")):
            with pytest.raises(ValueError, match="JSON"):
                asyncio.run(posting(JsonClient(server.url), {"score": value}))
        assert server.asked == []
        asyncio.run(posting(JsonClient(server.url), {"text": "half a pair: \ud83d"}))
    assert [request.payload for request in server.asked] == [{"text": "half a pair: ?"}]


@pytest.mark.parametrize("name", ["timeout_s", "retry_budget_s", "max_concurrency"])
def test_a_limit_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(RewardError) as caught:
        JsonClient("http://127.0.0.1/", **{name: 0})  # type: ignore[arg-type]
    assert caught.value.where == f"args.{name}"


@pytest.mark.parametrize(
    "url", ["http://me:hunter2@h/x", "http://me:hunter2@:port", "ftp://me:hunter2@x", "ftp://h/x", "http:///x", "", []]
)
def test_invalid_urls(url: Any) -> None:
    with pytest.raises(RewardError) as caught:
        JsonClient(url)
    assert caught.value.where == "args.url"
    assert "hunter2" not in str(caught.value)


def test_an_endless_answer_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "LARGEST", 100_000)
    packed = Answer(gzip.compress(b"[" * 1_000_000), headers={"Content-Encoding": "gzip"})
    for answer in (Answer(b"[" * 200_000), packed):
        with serving(answer) as server, pytest.raises(RewardError) as caught:
            asyncio.run(posting(JsonClient(server.url), {}))
        assert (caught.value.where, "100,000" in str(caught.value)) == (server.url, True)
    with serving(Answer(b'"' + b"x" * 99_998 + b'"')) as server:
        assert asyncio.run(posting(JsonClient(server.url), {})) == "x" * 99_998


def test_a_kept_reply_that_is_no_plain_file_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "on another disk"))
    cache, request = ReplyCache(tmp_path / "a" / "b"), {"model": "m", "seed": 1}
    for reply in ("no", "yes, or half a pair: \ud83d"):
        cache.write(request, reply)
        assert cache.read({"seed": 1, "model": "m"}) == reply
    assert cache.read(request | {"seed": 2}) is None
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    file.write_text("[" * 100_000)
    assert cache.read(request) is None
    file.unlink()
    os.mkfifo(file)
    assert cache.read(request) is None
    file.unlink()
    file.mkdir()
    cache.write(request, "what cannot be kept leaves nothing")
    assert list(file.parent.iterdir()) == [file]


def test_what_is_cancelled_has_ended_when_the_failure_is_raised() -> None:
    ended: list[bool] = []

    async def waiting() -> int:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            ended.append(True)
        return 0

    async def failing() -> int:
        await asyncio.sleep(0.01)
        raise KeyError

    async def both() -> None:
        with pytest.raises(KeyError):
            await together([waiting(), failing()])
        assert ended == [True]

    asyncio.run(both())
