"""Run async rewards on one event loop for the stack's life, in a thread of its own.

A client that a user keeps between calls is bound to its loop, and rewards of one level wait at the same time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from concurrent.futures import CancelledError

from rlhf_cli.stack.failed_call import RewardTimeout

_END_S = 1.0
"""Async rewards that still wait at the end have so long to take leave."""


class RewardLoop:
    """Begin a loop with the first awaitable, and another one where the last is blocked."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: threading.Thread
        self._lock = threading.Lock()
        self._is_closed = False

    def run(self, awaitable: Awaitable[object], timeout_s: float | None) -> object:
        """Return what `awaitable` comes to. Raises RewardTimeout where the loop does not answer in `timeout_s`."""
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
                raise  # the function's own
            with self._lock:
                self._loop = None if self._loop is loop else self._loop
            loop.call_soon_threadsafe(loop.stop)
            raise RewardTimeout("no answer, and the event loop is blocked: it waits without `await`") from None
        except CancelledError:
            if self._is_closed:
                raise asyncio.CancelledError from None  # no failure of the reward's: nothing more is to be tried
            raise

    def close(self) -> None:
        """End the loop; what still waits is cancelled."""
        self._is_closed = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._server.join(2 * _END_S)
            self._loop = None


async def _as_coroutine(awaitable: Awaitable[object]) -> object:
    return await awaitable


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run until stopped; then cancel what still waits, as `asyncio.run` does."""
    while True:
        try:
            loop.run_forever()
            break
        except (SystemExit, KeyboardInterrupt):
            continue  # asyncio lets them end the loop; whoever awaits the reward gets them all the same
    waiting = asyncio.all_tasks(loop)
    for task in waiting:
        task.cancel()
    if waiting:
        loop.run_until_complete(asyncio.wait(waiting, timeout=_END_S))
    loop.run_until_complete(loop.shutdown_asyncgens())  # open clients are kept in these
    loop.close()
