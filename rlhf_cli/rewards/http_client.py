"""POST JSON to a server that is now and then busy, and never say the key it wants.

Shared by `rewards/server.py` and `rewards/judge.py`. Everything fails as RewardError, in whose text no key occurs.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import math
import os
import random
import time
from collections.abc import AsyncGenerator, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import httpx2

from rlhf_cli.errors import RewardError

_Value = TypeVar("_Value")

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 20.0

# Each generator holds an open client. On its way out (`asyncio.run`, `Runner.close`) a loop ends the generators that
# were begun in it, and so a client is closed by the loop it belongs to. They are kept here until then, whoever drops
# theirs.
_holders: WeakKeyDictionary[asyncio.AbstractEventLoop, list[AsyncGenerator[httpx2.AsyncClient, None]]]
_holders = WeakKeyDictionary()


@dataclass
class _Live:
    """What belongs to one event loop."""

    loop: asyncio.AbstractEventLoop
    client: httpx2.AsyncClient
    places: asyncio.Semaphore


@dataclass
class _Attempts:
    """One request's tries so far."""

    deadline: float
    count: int = 0
    last: str = ""
    asked_to_wait: list[float] = field(default_factory=list)


class JsonClient:
    """Posts JSON to one of several equal servers, in turn; tries again elsewhere or later while the budget lasts.

    Tried again: 429, 5xx, no connection, no answer in time. Waiting doubles from half a second to twenty, with jitter,
    and is at least what `Retry-After` asks for.

    Args:
        url: one, or several.
        api_key_env: the *name* of the environment variable that holds the key, sent as a bearer token.
        timeout_s: for one try, from connecting to the last byte.
        retry_budget_s: for a request with all its tries and waits.
        max_concurrency: requests under way at once.
        path: put behind each url that does not end with it.
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
                raise RewardError("no time at all", where=f"args.{name}", got=value, expected="seconds, more than 0")
        if max_concurrency < 1:
            raise RewardError(
                "no request at all", where="args.max_concurrency", got=max_concurrency, expected="1 or more"
            )
        self.urls = [_plain_url(one, path) for one in given]
        self._api_key_env = api_key_env
        self._timeout_s = timeout_s
        self._retry_budget_s = retry_budget_s
        self._max_concurrency = max_concurrency
        self._next = 0
        self._live: _Live | None = None
        self._key()

    def __repr__(self) -> str:
        return f"JsonClient({', '.join(shown(url) for url in self.urls)})"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_live": None}

    async def post(self, payload: Any) -> Any:
        """The JSON that a server answers to `payload`. Raises RewardError."""
        body = json.dumps(payload, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
        live = await self._living()
        async with live.places:
            first, self._next = self._next, (self._next + 1) % len(self.urls)
            attempts = _Attempts(deadline=time.monotonic() + self._retry_budget_s)
            while True:
                url = self.urls[(first + attempts.count) % len(self.urls)]
                answer = await self._try(live.client, url, body, attempts)
                if answer is not None:
                    return self._decoded(answer, url)
                await self._wait(attempts, url)

    async def _try(
        self, client: httpx2.AsyncClient, url: str, body: bytes, attempts: _Attempts
    ) -> httpx2.Response | None:
        """The answer, None when it is worth another try."""
        left = attempts.deadline - time.monotonic()
        attempts.count += 1
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if key := self._key():
            headers["Authorization"] = f"Bearer {key}"
        try:
            async with asyncio.timeout(max(min(self._timeout_s, left), 0.001)):
                answer = await client.post(url, content=body, headers=headers)
        except TimeoutError:
            attempts.last = f"no answer within {min(self._timeout_s, left):.3g} s"
            return None
        except httpx2.HTTPError as error:
            attempts.last = self._scrubbed(f"{type(error).__name__}: {error}")
            return None
        if answer.status_code == 429 or answer.status_code >= 500:
            attempts.last = self._scrubbed(f"{answer.status_code} {answer.reason_phrase}: {answer.text[:200]}")
            if (wait := _retry_after(answer)) is not None:
                attempts.asked_to_wait.append(wait)
            return None
        if not answer.is_success:
            raise RewardError(
                f"the server refuses the request: {answer.status_code} {answer.reason_phrase}",
                where=shown(url),
                got=self._scrubbed(answer.text[:500]),
                hint=self._key_hint() if answer.status_code in (401, 403) else None,
            )
        return answer

    async def _wait(self, attempts: _Attempts, url: str) -> None:
        rounds, within = divmod(attempts.count, len(self.urls))
        wait = 0.0
        if within == 0:  # every server had its turn
            backoff = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(rounds - 1, 10))
            wait = max(backoff * random.uniform(0.5, 1.0), min(attempts.asked_to_wait, default=0.0))
            attempts.asked_to_wait.clear()
        if time.monotonic() + wait >= attempts.deadline:
            raise RewardError(
                f"the server did not answer within retry_budget_s = {self._retry_budget_s:g} ({attempts.count} tries)",
                where=shown(url),
                got=attempts.last + (f"; it asks to wait {wait:.3g} s" if wait > _LONGEST_WAIT_S else ""),
                expected="an answer of 200",
            )
        await asyncio.sleep(wait)

    def _decoded(self, answer: httpx2.Response, url: str) -> Any:
        try:
            return answer.json()
        except ValueError:
            raise RewardError(
                "the server's answer is no JSON", where=shown(url), got=self._scrubbed(answer.text[:200]) or "nothing"
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
        return f"another key in {self._api_key_env}"

    def _scrubbed(self, text: str) -> str:
        """A server may repeat in its answer what it was sent."""
        key = self._key()
        return text.replace(key, "***") if key else text


async def together(requests: Sequence[Coroutine[Any, Any, _Value]]) -> list[_Value]:
    """The results of all, in order. The first failure ends the others, and is raised as it is."""
    tasks = [asyncio.ensure_future(request) for request in requests]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def shown(url: str) -> str:
    """`url` as it may be seen: without what comes behind a question mark."""
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
            "a password does not belong into a url: it would be frozen into the run folder",
            where="args.url",
            got=f"{parsed.scheme}://***@{parsed.host}{parsed.path}",
            hint="api_key_env: NAME, the environment variable that holds a key",
        )
    if parsed.scheme not in ("http", "https") or not parsed.host:
        # Not shown: what cannot be read may hold a password all the same.
        raise RewardError("this is no url of a server", where="args.url", expected="http://HOST:PORT/PATH, or https://")
    if path and not parsed.path.rstrip("/").endswith(path):
        parsed = parsed.copy_with(path=parsed.path.rstrip("/") + path)
    return str(parsed)


def _retry_after(answer: httpx2.Response) -> float | None:
    """Seconds, from a number of them or a date; None where there is neither."""
    text = answer.headers.get("Retry-After", "")
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, TypeError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
