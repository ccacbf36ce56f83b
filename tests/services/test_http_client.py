"""Tries, waits, turns, and a key that is seen by the server alone."""

from __future__ import annotations

import asyncio
import logging
import pickle
import random
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rlhf_cli.errors import RewardError
from rlhf_cli.services import http_client
from rlhf_cli.services.http_client import JsonClient, together
from tests.support.fake_server import Answer, serving

KEY = "sk-do-not-tell-6f2a"
OK = Answer({"fine": True})


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as one:
        yield one


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What was waited between tries; the waiting itself is left out, and jitter is at its most."""
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
def test_429_then_ok_waits_as_asked(runner: asyncio.Runner, waits: list[float]) -> None:
    with serving(Answer("later", 429, {"Retry-After": "3"}), Answer("busy", 503), OK) as server:
        assert runner.run(posting(JsonClient(server.url), {})) == {"fine": True}
    assert waits == [3.0, 1.0]
    assert len(server.asked) == 3


@pytest.mark.fault(35)
def test_500_for_ever_uses_up_the_budget(runner: asyncio.Runner) -> None:
    with serving(Answer({"error": "it is broken"}, 500)) as server:
        started = time.monotonic()
        with pytest.raises(RewardError, match=r"within retry_budget_s = 1.2 \(\d tries\)") as caught:
            runner.run(posting(JsonClient(server.url, retry_budget_s=1.2), {}))
        assert time.monotonic() - started < 3
    assert "500 Internal Server Error" in str(caught.value)
    assert "it is broken" in str(caught.value)
    assert server.url in str(caught.value)
    assert 2 <= len(server.asked) <= 3


def test_backoff_doubles_up_to_a_limit(runner: asyncio.Runner, waits: list[float]) -> None:
    with serving(*[Answer("", 500)] * 8, OK) as server:
        runner.run(posting(JsonClient(server.url, retry_budget_s=1000), {}))
    assert waits == [0.5, 1, 2, 4, 8, 16, 20, 20]


def test_a_refusal_is_not_tried_again(runner: asyncio.Runner) -> None:
    refusal = Answer({"detail": "no field `completions`"}, 422)
    with serving(refusal) as server, pytest.raises(RewardError, match="refuses the request: 422") as caught:
        runner.run(posting(JsonClient(server.url), {}))
    assert "no field `completions`" in str(caught.value)
    assert len(server.asked) == 1


def test_another_server_is_asked_at_once(runner: asyncio.Runner, waits: list[float]) -> None:
    with serving(Answer("", 429, {"Retry-After": "30"})) as busy, serving(OK) as idle:
        client = JsonClient([busy.url, f"http://127.0.0.1:{closed_port()}/", idle.url])
        assert runner.run(posting(client, {})) == {"fine": True}
        assert (len(busy.asked), len(idle.asked)) == (1, 1)
    assert waits == [0.0, 0.0]


def test_no_more_at_once_than_allowed(runner: asyncio.Runner) -> None:
    async def many(client: JsonClient) -> None:
        async with client.session() as post:
            await together([post({}) for _ in range(9)])

    with serving(Answer({}, after_s=0.05)) as server:
        runner.run(many(JsonClient(server.url, max_concurrency=3)))
        assert server.at_once == 3
        assert len(server.asked) == 9


def test_the_key_goes_to_the_server_and_nowhere_else(
    runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    said: list[str] = []

    def echo(payload: object) -> Answer:
        return Answer({"you sent": f"Bearer {KEY}"}, payload["status"])  # type: ignore[index]

    with serving(echo) as server:
        client = JsonClient(server.url + "?token=hidden", api_key_env="MY_KEY", retry_budget_s=0.2)
        for status in (401, 500):
            with pytest.raises(RewardError) as caught:
                runner.run(posting(client, {"status": status}))
            said.append(f"{caught.value} {caught.value!r} {caught.value.__dict__}")
        assert all(one.headers["Authorization"] == f"Bearer {KEY}" for one in server.asked)
    assert "***" in said[0]
    assert "export MY_KEY=..." in said[0]
    said += [repr(client), repr(vars(client)), caplog.text]
    assert not any(KEY in text for text in said)
    assert not any("hidden" in text for text in [*said[:2], repr(client)])
    assert KEY.encode() not in pickle.dumps(client)


@pytest.mark.parametrize("value", [None, "  "])
@pytest.mark.fault(35)
def test_a_key_that_is_not_there_is_missed_at_once(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("MY_KEY", value)
    with pytest.raises(RewardError, match="environment variable MY_KEY is not set"):
        JsonClient("http://127.0.0.1/", api_key_env="MY_KEY")


@pytest.mark.parametrize(
    "url", ["http://me:hunter2@127.0.0.1/x", "http://me:hunter2@:port", "ftp://me:hunter2@x", "", []]
)
def test_urls_that_will_not_do(url: Any) -> None:
    with pytest.raises(RewardError) as caught:
        JsonClient(url)
    assert "args.url" in str(caught.value)
    assert "hunter2" not in str(caught.value)
