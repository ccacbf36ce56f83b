"""Post JSON to a server that may be busy, without revealing its key.

Used by `rewards/server.py` and `rewards/judge.py`. All failures are RewardErrors, whose text never contains a key.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import math
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakKeyDictionary

import httpx2
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_before_delay,
    wait_exponential,
    wait_random_exponential,
)

from rlhf_cli.errors import RewardError

_Value = TypeVar("_Value")

_LONGEST_WAIT_S = 20.0
# Half of each wait is random, so that many clients of one busy server do not return at once.
_HALF = {"multiplier": 0.25, "max": _LONGEST_WAIT_S / 2}
_BACKOFF = wait_exponential(**_HALF) + wait_random_exponential(**_HALF)

# Each generator holds an open client. An event loop that shuts down (`asyncio.run`, `Runner.close`) closes the
# generators that were started in it, so each client is closed by its own loop. This list keeps them alive until then.
_holders: WeakKeyDictionary[asyncio.AbstractEventLoop, list[AsyncGenerator[httpx2.AsyncClient, None]]]
_holders = WeakKeyDictionary()


@dataclass
class _Live:
    """The client and the concurrency limit of one event loop."""

    loop: asyncio.AbstractEventLoop
    client: httpx2.AsyncClient
    places: asyncio.Semaphore


@dataclass
class _Request:
    """A request: its body, the server to ask first, its deadline and the number of tries."""

    body: bytes
    first: int
    deadline: float
    num_tries: int = 0
    last: _Busy | None = None


class _Busy(Exception):
    """A server, or all of them, did not answer: which, its message, and how long it asks to wait (0 = not)."""

    def __init__(self, url: str, message: str, wait_s: float = 0.0, *, is_silence: bool = False) -> None:
        super().__init__(message)
        self.url, self.message, self.wait_s, self.is_silence = url, message, wait_s, is_silence


class JsonClient:
    """A client that posts JSON to equal servers in turn, and retries elsewhere or later within the budget.

    Retried: 429, 5xx, no connection, no answer in time. The wait doubles from half a second to twenty seconds, with
    jitter, and is at least `Retry-After`.

    Args:
        url: of one server, or a list of equal ones.
        api_key_env: the *name* of the environment variable that holds the key, sent as a bearer token.
        timeout_s: for one try, from connecting to the last byte.
        retry_budget_s: for a request with all its tries and waits.
        max_concurrency: maximum number of concurrent requests.
        path: appended to each url that does not end with it.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        api_key_env: str | None = None,
        timeout_s: float = 30.0,
        retry_budget_s: float = 60.0,
        max_concurrency: int = 8,
        path: str = "",
    ) -> None:
        given = [url] if isinstance(url, str) else list(url)
        if not given:
            raise RewardError("no server", where="args.url", got=given, expected="http://HOST:PORT/PATH, or a list")
        for name, value in (("timeout_s", timeout_s), ("retry_budget_s", retry_budget_s)):
            if value <= 0:
                raise RewardError(
                    "the time is not positive", where=f"args.{name}", got=value, expected="seconds, more than 0"
                )
        if max_concurrency < 1:
            raise RewardError(
                "the number of requests is not positive",
                where="args.max_concurrency",
                got=max_concurrency,
                expected="1 or more",
            )
        self.urls = [_plain_url(server, path) for server in given]
        self._api_key_env = api_key_env
        self._timeout_s = timeout_s
        self._retry_budget_s = retry_budget_s
        self._max_concurrency = max_concurrency
        self._next = 0
        self._live: _Live | None = None
        self._key()

    def __repr__(self) -> str:
        return f"JsonClient({', '.join(shown(url) for url in self.urls)})"

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_live": None}

    async def post(self, payload: object) -> object:
        """Return the JSON that a server answers to `payload`.

        Raises RewardError if the server refuses the request, does not answer with JSON, or exceeds the budget.
        """
        body = json.dumps(payload, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
        live = await self._living()
        async with live.places:
            request = _Request(body, self._next, time.monotonic() + self._retry_budget_s)
            self._next = (self._next + 1) % len(self.urls)
            rounds = AsyncRetrying(
                retry=retry_if_exception_type(_Busy),
                wait=_wait,
                stop=stop_before_delay(self._retry_budget_s),
                reraise=True,
            )
            try:
                return await rounds(self._round, live.client, request)
            except _Busy as busy:
                budget = f"retry_budget_s = {self._retry_budget_s:g} ({request.num_tries} tries)"
                raise RewardError(
                    f"the server did not answer within {budget}",
                    where=shown(busy.url),
                    got=busy.message
                    + (f"; it asks to wait {busy.wait_s:.3g} s" if busy.wait_s > _LONGEST_WAIT_S else ""),
                    expected="an answer of 200",
                ) from None

    async def _round(self, client: httpx2.AsyncClient, request: _Request) -> object:
        """Ask each server once, without waiting between them, and return the first answer. Raises _Busy if none
        answers.
        """
        busy: list[_Busy] = []
        for url in [*self.urls[request.first :], *self.urls[: request.first]]:
            left = request.deadline - time.monotonic()
            if busy and left <= 0:
                break
            try:
                request.num_tries += 1
                return await self._try(client, url, request.body, max(min(self._timeout_s, left), 0.001))
            except _Busy as error:
                # A try cut short by the end of the budget tells nothing about the server; keep its last real error.
                if request.last is None or not (error.is_silence and left < self._timeout_s):
                    request.last = error
                busy.append(request.last)
        waits_s = [error.wait_s for error in busy if error.wait_s]
        raise _Busy(busy[-1].url, busy[-1].message, min(waits_s, default=0.0))

    async def _try(self, client: httpx2.AsyncClient, url: str, body: bytes, timeout_s: float) -> object:
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._send(client, url, body)
        except TimeoutError:
            raise _Busy(url, f"no answer within {timeout_s:.3g} s", is_silence=True) from None
        except httpx2.HTTPError as error:
            raise _Busy(url, self._scrubbed(f"{type(error).__name__}: {error}")) from None
        if answer.status_code == 429 or answer.status_code >= 500:
            message = self._scrubbed(f"{answer.status_code} {answer.reason_phrase}: {answer.text[:200]}")
            raise _Busy(url, message, _retry_after(answer))
        if not answer.is_success:
            raise RewardError(
                f"the server refuses the request: {answer.status_code} {answer.reason_phrase}",
                where=shown(url),
                got=self._scrubbed(answer.text[:500]),
                hint=self._key_hint() if answer.status_code in (401, 403) else None,
            )
        return self._decoded(answer, url)

    async def _send(self, client: httpx2.AsyncClient, url: str, body: bytes) -> httpx2.Response:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if key := self._key():
            headers["Authorization"] = f"Bearer {key}"
        return await client.post(url, content=body, headers=headers)

    def _decoded(self, answer: httpx2.Response, url: str) -> object:
        try:
            return answer.json()
        except ValueError:
            raise RewardError(
                "the server's answer is not JSON", where=shown(url), got=self._scrubbed(answer.text[:200]) or "nothing"
            ) from None

    async def _living(self) -> _Live:
        loop = asyncio.get_running_loop()
        if self._live is None or self._live.loop is not loop:
            holder = _held_client(self._max_concurrency)
            _holders.setdefault(loop, []).append(holder)
            self._live = _Live(loop, await anext(holder), asyncio.Semaphore(self._max_concurrency))
        return self._live

    def _key(self) -> str | None:
        if self._api_key_env is None:
            return None
        key = os.environ.get(self._api_key_env, "").strip()
        if not key or not key.isascii() or not key.isprintable():
            raise RewardError(
                f"the environment variable {self._api_key_env} {'is no header text' if key else 'is not set'}",
                where="args.api_key_env",
                expected="the name of a variable that holds the key",
                hint=f"export {self._api_key_env}=...",
            )
        return key

    def _key_hint(self) -> str:
        if self._api_key_env is None:
            return "args.api_key_env=NAME_OF_A_VARIABLE"
        return f"export {self._api_key_env}=...  # another key"

    def _scrubbed(self, text: str) -> str:
        """Remove the key from a text, because a server may repeat the request in its answer."""
        key = self._key()
        return text.replace(key, "***") if key else text


async def together(requests: Sequence[Awaitable[_Value]]) -> list[_Value]:
    """Return all results in order. The first failure cancels the others and is raised unchanged."""
    tasks = [asyncio.ensure_future(request) for request in requests]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def shown(url: str) -> str:
    """Return `url` without its query string, safe to show."""
    return url.partition("?")[0]


async def _held_client(max_concurrency: int) -> AsyncGenerator[httpx2.AsyncClient, None]:
    limits = httpx2.Limits(max_connections=max_concurrency, max_keepalive_connections=max_concurrency)
    async with httpx2.AsyncClient(limits=limits, timeout=None) as client:
        yield client


def _plain_url(url: str, path: str) -> str:
    try:
        parsed = httpx2.URL(url)
    except (httpx2.InvalidURL, TypeError):
        parsed = httpx2.URL("")
    if parsed.userinfo:
        raise RewardError(
            "a URL must not contain a password: it is stored in the run folder",
            where="args.url",
            got=f"{parsed.scheme}://***@{parsed.host}{parsed.path}",
            hint="api_key_env: NAME, the environment variable that holds a key",
        )
    if parsed.scheme not in ("http", "https") or not parsed.host:
        # Do not show it: a malformed url may still contain a password.
        raise RewardError(
            "this is not the URL of a server", where="args.url", expected="http://HOST:PORT/PATH, or https://"
        )
    if path and not parsed.path.rstrip("/").endswith(path):
        parsed = parsed.copy_with(path=parsed.path.rstrip("/") + path)
    return str(parsed)


def _wait(state: RetryCallState) -> float:
    busy = state.outcome.exception() if state.outcome else None
    return max(_BACKOFF(state), busy.wait_s if isinstance(busy, _Busy) else 0.0)


def _retry_after(answer: httpx2.Response) -> float:
    """Return the seconds to wait, from a number or a date; 0 if the header has neither."""
    text = answer.headers.get("Retry-After", "")
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, TypeError):
            return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0
