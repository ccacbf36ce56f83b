"""Decide which rewards run beside others: async ones on a loop, waiting ones in threads.

A client that a user keeps between calls is bound to its loop, and the rewards of a level can wait at the same time.

A reward that computes does not gain from a thread, and can do harm there: a regular expression that matches forever
holds the interpreter lock, and only in the main thread does it check for the deadline's signal (see deadline.py).
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError

from rlhf_cli.rewards.stack.component import Outcome, RewardTimeout
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


_WORTH_A_THREAD_S = 0.005
"""A reward that waits less than this per call gains less than a thread costs."""

_MOST_OF_THE_TIME = 4.0
"""A waiting reward waits at least this many times as long as it computes, over all calls.

On a busy machine, a reward that only computes also seems to wait: for the interpreter lock, or for the next slice of a
container's CPU quota. Beside eight other programs on two cores, a reward of a few milliseconds waited for up to 80 ms
per call.
"""


class WaitingRewards:
    """How long each reward has waited and computed so far."""

    def __init__(self) -> None:
        self._waited_s: dict[str, float] = {}
        self._busy_s: dict[str, float] = {}
        self._calls: dict[str, int] = {}
        self._interrupted: set[str] = set()

    def add(self, name: str, outcome: Outcome) -> None:
        """Count a call unless all gates were closed; a reward that timed out may need another interruption."""
        if not outcome.calls:
            return
        self._waited_s[name] = self._waited_s.get(name, 0.0) + outcome.seconds - outcome.busy_s
        self._busy_s[name] = self._busy_s.get(name, 0.0) + outcome.busy_s
        self._calls[name] = self._calls.get(name, 0) + 1
        if outcome.timeouts:
            self._interrupted.add(name)

    def waits(self, name: str, score: Callable[..., object]) -> bool:
        """Return whether this reward waits; before its first timing, assume so if it is async or isolated.

        Those two compute elsewhere, so they need no interruption in this thread.
        """
        is_elsewhere = isinstance(score, Isolated) or any(
            map(inspect.iscoroutinefunction, (score, type(score).__call__))
        )
        if name not in self._calls:
            return is_elsewhere
        waited_s, least_s = self._waited_s[name], _WORTH_A_THREAD_S * self._calls[name]
        if is_elsewhere:
            return waited_s >= least_s
        return name not in self._interrupted and waited_s >= max(least_s, _MOST_OF_THE_TIME * self._busy_s[name])
