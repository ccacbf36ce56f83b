"""The client retries, waits, takes turns between servers, and shows its key to the server only."""

from __future__ import annotations

import asyncio
import gzip
import logging
import os
import pickle
import random
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.errors import RewardError, ServerSilent
from rlhf_cli.services import http_client
from rlhf_cli.services.http_client import JsonClient, ReplyCache, together
from tests.support.fake_server import Answer, serving

KEY = "sk-do-not-tell-6f2a"
OK = Answer({"fine": True})


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the waits between tries in seconds. Nothing really waits, and jitter has its maximum."""
    waited: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        await real(0)

    monkeypatch.setattr(http_client.asyncio, "sleep", sleep)
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    return waited


async def posting(client: JsonClient, payload: object) -> object:
    async with client.session() as post:
        return await post(payload)


def closed_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
    return port


@pytest.mark.fault(35)
def test_429_then_ok_waits_as_asked(waits: list[float]) -> None:
    """The wait doubles up to a limit, and is at least what the server asks for."""
    with serving(Answer("later", 429, {"Retry-After": "3"}), *[Answer("busy", 503)] * 7, OK) as server:
        assert asyncio.run(posting(JsonClient(server.url, retry_budget_s=1000), {})) == {"fine": True}
    assert (waits, len(server.asked)) == ([3.0, 1, 2, 4, 8, 16, 20, 20], 9)


@pytest.mark.fault(35)
def test_errors_of_500_are_retried_until_the_budget_ends() -> None:
    with serving(Answer({"error": "it is broken"}, 500)) as server:
        started = time.monotonic()
        with pytest.raises(ServerSilent) as caught:
            asyncio.run(posting(JsonClient(server.url, retry_budget_s=1.2), {}))
        assert time.monotonic() - started < 3
    assert caught.value.where == server.url
    assert all(text in str(caught.value.got) for text in ("500 Internal Server Error", "it is broken"))
    assert 2 <= len(server.asked) <= 3


def test_a_refusal_is_not_retried() -> None:
    refusal = Answer({"detail": "no field `completions`"}, 422)
    with serving(refusal) as server, pytest.raises(RewardError) as caught:
        asyncio.run(posting(JsonClient(server.url), {}))
    assert (caught.value.where, "no field `completions`" in str(caught.value.got)) == (server.url, True)
    assert len(server.asked) == 1


def test_another_server_is_asked_without_a_wait(waits: list[float]) -> None:
    with serving(Answer("", 429, {"Retry-After": "30"})) as busy, serving(OK) as idle:
        client = JsonClient([busy.url, f"http://127.0.0.1:{closed_port()}/", idle.url])
        assert asyncio.run(posting(client, {})) == {"fine": True}
        assert (len(busy.asked), len(idle.asked)) == (1, 1)
    assert waits == [0.0, 0.0]


def test_concurrent_requests_are_limited() -> None:
    async def many(client: JsonClient) -> None:
        async with client.session() as post:
            await together([post({}) for _ in range(9)])

    with serving(Answer({}, after_s=0.05)) as server:
        asyncio.run(many(JsonClient(server.url, max_concurrency=3)))
        assert (server.at_once, len(server.asked)) == (3, 9)


def test_the_key_goes_to_the_server_only(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []

    def echo(payload: object) -> Answer:
        return Answer({"you sent": f"Bearer {KEY}"}, payload["status"])  # type: ignore[index]

    with serving(echo) as server:
        client = JsonClient(server.url + "?token=hidden", api_key_env="MY_KEY", retry_budget_s=0.2)
        for status in (401, 500):
            with pytest.raises(RewardError) as caught:
                asyncio.run(posting(client, {"status": status}))
            shown.append(f"{caught.value} {caught.value!r} {caught.value.__dict__}")
        assert all(request.headers["Authorization"] == f"Bearer {KEY}" for request in server.asked)
    assert "***" in shown[0]
    assert "export MY_KEY=..." in shown[0]
    shown += [repr(client), repr(vars(client)), caplog.text]
    assert not any(KEY in text for text in shown)
    assert not any("hidden" in text for text in [*shown[:2], repr(client)])
    assert KEY.encode() not in pickle.dumps(client)


@pytest.mark.parametrize("value", [None, "  "])
@pytest.mark.fault(35)
def test_a_missing_key_is_refused_at_once(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("MY_KEY", value)
    with pytest.raises(RewardError) as caught:
        JsonClient("http://127.0.0.1/", api_key_env="MY_KEY")
    assert (caught.value.where, caught.value.hint) == ("args.api_key_env", "export MY_KEY=...")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h:1", "http://h:1/v1/chat"),
        ("http://h:1/a/", "http://h:1/a/v1/chat"),
        ("http://h:1/a/v1/chat", "http://h:1/a/v1/chat"),
        ("http://h:1/v1/chat/", "http://h:1/v1/chat/"),
    ],
)
def test_a_path_is_added_to_a_url_that_does_not_end_in_it(url: str, expected: str) -> None:
    assert http_client._plain_url(url, "/v1/chat") == expected


def test_what_json_lacks_is_not_sent() -> None:
    with serving(OK) as server:
        for value in (float("nan"), float("inf")):
            with pytest.raises(ValueError, match="JSON"):
                asyncio.run(posting(JsonClient(server.url), {"score": value}))
        assert server.asked == []


@pytest.mark.parametrize("url", ["http://me:hunter2@h/x", "http://me:hunter2@:port", "ftp://me:hunter2@x", "", []])
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
        assert (caught.value.where, "100,000" in str(caught.value.got)) == (server.url, True)


def test_a_kept_reply_that_is_no_plain_file_is_asked_for_again(tmp_path: Path) -> None:
    cache, request = ReplyCache(tmp_path), {"model": "m"}
    cache.write(request, "yes")
    assert cache.read(request) == "yes"
    (file,) = tmp_path.glob("*/*.json")
    file.write_text("[" * 100_000)
    assert cache.read(request) is None
    file.unlink()
    os.mkfifo(file)
    assert cache.read(request) is None


def test_what_is_cancelled_has_ended_when_the_failure_is_raised() -> None:
    ended: list[bool] = []

    async def waiting() -> int:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
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
