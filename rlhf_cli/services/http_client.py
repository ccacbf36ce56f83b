"""Post JSON to a server that may be busy, without revealing its key, and keep its replies on disk.

Used by `rewards/server.py` and `rewards/judge.py`. All failures are RewardErrors, whose text never contains a key.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import hashlib
import json
import logging
import math
import os
import random
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import httpx2
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_before_delay

from rlhf_cli.errors import RewardError, ServerSilent
from rlhf_cli.text.regular_files import LARGEST, parse_json, read_object

_Value = TypeVar("_Value")

Post = Callable[[object], Awaitable[object]]  # post a JSON value and return the JSON that a server answers

_LONGEST_WAIT_S = 20.0
_WARNED_EVERY_S = 30.0
_log = logging.getLogger("rlhf")


class _Busy(Exception):
    """A server did not answer: which, its message, and how long it asks to wait (0 = not)."""

    def __init__(self, url: str, message: str, wait_s: float = 0.0) -> None:
        self.url, self.message, self.wait_s = url, message, wait_s


@dataclass(eq=False)
class JsonClient:
    """A client that posts JSON to equal servers in turn, and retries elsewhere or later within the budget.

    Retried: 429, 5xx, no connection, no answer in time. The wait doubles from half a second to twenty seconds, with
    jitter, and is at least `Retry-After`.
    """

    url: str | Sequence[str]  # of one server, or a list of equal ones
    api_key_env: str | None = None  # the *name* of the environment variable that holds the key, sent as a bearer token
    timeout_s: float = 30.0  # for one try, from connecting to the last byte
    retry_budget_s: float = 60.0  # for a request with all its tries and waits
    max_concurrency: int = 8  # maximum number of concurrent requests
    path: str = ""  # appended to each url that does not end with it
    _next: int = 0
    _warned_at_s: float = -math.inf

    def __post_init__(self) -> None:
        given = [self.url] if isinstance(self.url, str) else list(self.url)
        if not given:
            raise RewardError("no server", where="args.url", got=given, expected="http://HOST:PORT/PATH, or a list")
        for name in ("timeout_s", "retry_budget_s", "max_concurrency"):
            if (value := getattr(self, name)) <= 0:
                raise RewardError(f"{name} is not positive", where=f"args.{name}", got=value, expected="more than 0")
        self.urls = [_plain_url(server, self.path) for server in given]
        self._key()  # raises if it is missing

    @classmethod
    def of(cls, reward: object, *, path: str = "") -> JsonClient:
        """Return a client with the values of a reward's fields of the same names."""
        names = ("url", "api_key_env", "timeout_s", "retry_budget_s", "max_concurrency")
        return cls(**{name: getattr(reward, name) for name in names}, path=path)

    def __repr__(self) -> str:
        return ", ".join(shown(url) for url in self.urls)

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[Post]:
        """Open connections, and yield the function that posts on them: the requests of one batch.

        It raises RewardError if the server refuses the request or does not answer with JSON, and ServerSilent if it
        exceeds the budget.
        """
        places = asyncio.Semaphore(self.max_concurrency)
        limits = httpx2.Limits(max_connections=self.max_concurrency)
        async with httpx2.AsyncClient(limits=limits, timeout=None) as client:

            async def post(payload: object) -> object:
                body = json.dumps(payload, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
                async with places:
                    return await self._post(client, body)

            yield post

    async def _post(self, client: httpx2.AsyncClient, body: bytes) -> object:
        first, self._next = self._next, (self._next + 1) % len(self.urls)
        deadline, num_tries = time.monotonic() + self.retry_budget_s, 0
        try:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type(_Busy),
                wait=self._wait_s,
                stop=stop_before_delay(0.9 * self.retry_budget_s),  # a later try would hide the last answer
                reraise=True,
            ):
                with attempt:
                    url = self.urls[(first + num_tries) % len(self.urls)]
                    num_tries += 1
                    return await self._try(client, url, body, min(self.timeout_s, deadline - time.monotonic()))
        except _Busy as busy:
            what = f"the server did not answer within retry_budget_s = {self.retry_budget_s:g} ({num_tries} tries)"
            waits = f"; it asks for a wait of {busy.wait_s:.3g} s" if busy.wait_s > _LONGEST_WAIT_S else ""
            raise ServerSilent(what, where=shown(busy.url), got=busy.message + waits) from None
        raise AssertionError("the last try returns or raises")

    def _wait_s(self, state: RetryCallState) -> float:
        """Return the seconds to wait before the next try; 0 before a try of another server."""
        if state.attempt_number % len(self.urls):
            return 0.0
        # Half of each wait is random, so that many clients of one busy server do not return at once.
        half_s = min(0.25 * 2.0 ** (state.attempt_number // len(self.urls) - 1), _LONGEST_WAIT_S / 2)
        busy = cast(_Busy, state.outcome.exception() if state.outcome else None)  # nothing else is retried
        if time.monotonic() - self._warned_at_s > _WARNED_EVERY_S:
            self._warned_at_s = time.monotonic()
            left_s = self.retry_budget_s - (state.seconds_since_start or 0.0)
            _log.warning(f"waiting up to {left_s:.0f} s for {shown(busy.url)}: {busy.message}")
        return max(half_s + random.uniform(0, half_s), busy.wait_s)

    async def _try(self, client: httpx2.AsyncClient, url: str, body: bytes, timeout_s: float) -> object:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if key := self._key():
            headers["Authorization"] = f"Bearer {key}"
        try:
            async with asyncio.timeout(timeout_s), client.stream("POST", url, content=body, headers=headers) as answer:
                content = bytearray()
                async for part in answer.aiter_bytes():
                    content += part
                    if len(content) > LARGEST:
                        raise RewardError(f"the server's answer has over {LARGEST:,} bytes", where=shown(url))
        except TimeoutError:
            raise _Busy(url, f"no answer within {timeout_s:.3g} s") from None
        except httpx2.HTTPError as error:
            raise _Busy(url, self._scrubbed(f"{type(error).__name__}: {error}")) from None
        text = self._scrubbed(content.decode(errors="replace"))  # all of it: a cut key is not found
        status = self._scrubbed(f"{answer.status_code} {answer.reason_phrase}")
        if answer.status_code == 429 or answer.status_code >= 500:
            raise _Busy(url, f"{status}: {text[:200]}", _retry_after(answer))
        if not answer.is_success:
            what = f"the server refuses the request: {status}"
            hint = f"export {self.api_key_env or 'NAME'}=...  # args.api_key_env names it"
            is_for_the_key = answer.status_code in (401, 403)
            raise RewardError(what, where=shown(url), got=text[:500], hint=hint if is_for_the_key else None)
        try:
            return parse_json(bytes(content))
        except ValueError:
            what, got = "the server's answer is not JSON", text[:200] or "nothing"
            raise RewardError(what, where=shown(url), got=got) from None

    def _key(self) -> str | None:
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env, "").strip()
        if not key or not key.isascii() or not key.isprintable():
            what = f"the environment variable {self.api_key_env} {'is invalid in a header' if key else 'is not set'}"
            expected = "the name of a variable that holds the key"
            raise RewardError(what, where="args.api_key_env", expected=expected, hint=f"export {self.api_key_env}=...")
        return key

    def _scrubbed(self, text: str) -> str:
        """Remove the key: a server may repeat the request in its answer."""
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


def _plain_url(url: str, path: str) -> str:
    try:
        parsed = httpx2.URL(url)
    except (httpx2.InvalidURL, TypeError):
        parsed = httpx2.URL("")
    if parsed.userinfo:
        what = "a URL must not contain a password, because it is stored in the run folder"
        got = f"{parsed.scheme}://***@{parsed.host}{parsed.path}"
        hint = "api_key_env: NAME, the environment variable that holds a key"
        raise RewardError(what, where="args.url", got=got, hint=hint)
    if parsed.scheme not in ("http", "https") or not parsed.host:
        # Do not show it: a malformed url may still contain a password.
        raise RewardError("invalid URL of a server", where="args.url", expected="http://HOST:PORT/PATH, or https://")
    if path and not parsed.path.rstrip("/").endswith(path):
        parsed = parsed.copy_with(path=parsed.path.rstrip("/") + path)
    return str(parsed)


def _retry_after(answer: httpx2.Response) -> float:
    """Return the seconds for which the server asks to wait, also by a date; 0 if it does not."""
    text, seconds = answer.headers.get("Retry-After", ""), 0.0
    try:
        seconds = float(text)
    except ValueError:
        with contextlib.suppress(ValueError, TypeError):
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0


class ReplyCache:
    """A cache that several processes can share: files are renamed into place, so each is whole or absent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, request: Mapping[str, object]) -> str | None:
        """Return the reply to an equal request, or None if it is missing or unreadable."""
        try:
            reply = read_object(self._file(request)).get("reply")
        except (OSError, ValueError):
            return None
        return reply if isinstance(reply, str) else None

    def write(self, request: Mapping[str, object], reply: str) -> None:
        """Store a reply. A full or read-only disk is ignored, so that the run continues."""
        file = self._file(request)
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            beside = file.with_suffix(f".{secrets.token_hex(8)}")
            try:
                beside.write_text(json.dumps({"model": request["model"], "reply": reply}), encoding="utf-8")
                beside.replace(file)
            finally:
                beside.unlink(missing_ok=True)

    def _file(self, request: Mapping[str, object]) -> Path:
        digest = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
        return self._folder / digest[:2] / f"{digest}.json"
