"""Decide which rewards run beside others, and run async ones on one event loop.

A client that a user keeps between calls is bound to its loop. A reward that computes does not gain from a thread, and
can do harm there: a regular expression that matches forever holds the interpreter lock, and only in the main thread
does it check for the deadline's signal (see calling.py).
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError

from rlhf_cli.rewards.stack.component import RewardTimeout
from rlhf_cli.rewards.stack.isolated import Isolated

_END_S = 1.0
"""Seconds that waiting async rewards get to finish after they are cancelled."""


class RewardLoop:
    """An event loop that starts with the first awaitable, and is replaced if it is blocked."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: threading.Thread
        self._lock = threading.Lock()
        self._is_closed = False

    def run(self, awaitable: Awaitable[object], timeout_s: float | None) -> object:
        """Return the result of `awaitable`. Raise RewardTimeout if the loop does not answer within `timeout_s`."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                name = "reward event loop"
                self._server = threading.Thread(target=_serve, args=[self._loop], daemon=True, name=name)
                self._server.start()
            loop = self._loop
        future = asyncio.run_coroutine_threadsafe(_as_coroutine(awaitable), loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            if future.done():
                raise  # raised by the function itself
            with self._lock:
                self._loop = None if self._loop is loop else self._loop
            loop.call_soon_threadsafe(loop.stop)
            raise RewardTimeout("no answer, and the event loop is blocked: it waits without `await`") from None
        except CancelledError:
            if self._is_closed:
                raise asyncio.CancelledError from None  # not a failure of the reward: do not retry
            raise

    def close(self) -> None:
        """End the loop and cancel waiting rewards."""
        self._is_closed = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._server.join(2 * _END_S)
            self._loop = None


async def _as_coroutine(awaitable: Awaitable[object]) -> object:
    return await awaitable


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run until stopped; then cancel pending tasks, as `asyncio.run` does."""
    while True:
        try:
            loop.run_forever()
            break
        except (SystemExit, KeyboardInterrupt):
            continue  # asyncio lets these end the loop; the reward's caller still receives them
    waiting = asyncio.all_tasks(loop)
    for task in waiting:
        task.cancel()
    if waiting:
        loop.run_until_complete(asyncio.wait(waiting, timeout=_END_S))
    loop.run_until_complete(loop.shutdown_asyncgens())  # these hold open clients
    loop.close()


def runs_elsewhere(score: Callable[..., object]) -> bool:
    """Return whether a reward computes outside of the thread that calls it: it is async or isolated."""
    functions = (score, type(score).__call__)
    return isinstance(score, Isolated) or any(map(inspect.iscoroutinefunction, functions))
