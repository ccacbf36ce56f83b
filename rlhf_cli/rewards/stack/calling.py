"""Call one reward on its rows with a deadline and its own copies of the arguments, an async one on an event loop.

The kernel sends the signal, so it arrives even while the call holds the interpreter lock. `re`, which may match forever
on some text, checks for signals (CPython's Modules/_sre/sre_lib.h), as do sleeping, waiting for a lock and reading from
a socket. Compiled code that never checks for signals can only be stopped in a process that can be killed (`isolate`).
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import multiprocessing
import multiprocessing.process
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import NoReturn, SupportsFloat

from rlhf_cli.errors import Interrupted, RewardError, ServerSilent
from rlhf_cli.process import abandoned, is_ctrl_c_pythons_own, start_timer
from rlhf_cli.rewards.completion_text import text_of
from rlhf_cli.rewards.stack.component import Batch, Component, FailedCall, RewardOutcome, RewardTimeout, by_row
from rlhf_cli.rewards.stack.returned_scores import Offset, Score, TokenValues, as_scores, as_token_values, named_spans
from rlhf_cli.rewards.stack.reward_functions import compares_rows
from rlhf_cli.rewards.stack.token_offsets import as_turn_values, characters, token_ids, turns_of
from rlhf_cli.tables.trl_values import TRAINERS_OWN

_AGAIN_S = 1.0
"""Seconds between repeated alarms, for a call that catches the first one and continues."""


class _Alarm(BaseException):
    """Raised inside a call that is out of time; not an Exception, so that `except Exception` does not catch it."""


_DEADLINE = signal.SIGRTMAX


def call_within(call: Callable[[], object], timeout_s: float | None) -> object:
    """Return the call's result. Raise its errors, and RewardTimeout after `timeout_s` seconds (None for no limit).

    The call may set an alarm of its own; one that it leaves behind is removed. There is no deadline outside of the main
    thread, where only async and isolated rewards are called, which have deadlines of their own.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    here: FrameType | None = sys._getframe()
    armed = [True]

    def ring(number: int, frame: FrameType | None) -> None:
        if armed and frame is not here:  # at this frame, the call has not begun or has returned
            raise _Alarm

    before = _waited_for()
    left_s = signal.getitimer(signal.ITIMER_REAL)[0]
    stop: Callable[[], object] = int
    try:
        if timeout_s is not None:
            signal.signal(_DEADLINE, ring)
            stop = start_timer(_DEADLINE, timeout_s, _AGAIN_S)
        return call()
    except _Alarm:
        armed.clear()
        for waited in _waited_for() - before:
            abandoned.add(waited) if isinstance(waited, threading.Thread) else waited.kill()
        raise RewardTimeout(f"no answer within {timeout_s:g} s") from None
    finally:
        armed.clear()
        here = None  # a frame that holds itself keeps all that called it, and a step's tensors, until gc looks
        stop()
        signal.signal(_DEADLINE, signal.SIG_IGN)
        if not left_s:
            signal.setitimer(signal.ITIMER_REAL, 0.0)


def _waited_for() -> set[threading.Thread | multiprocessing.process.BaseProcess]:
    """Return the threads and children that this process would wait for at its end."""
    threads = {thread for thread in threading.enumerate() if not thread.daemon}
    return threads | {child for child in multiprocessing.active_children() if not child.daemon}


@contextmanager
def as_exceptions() -> Iterator[None]:
    """Turn sys.exit, a panic in Rust, and KeyboardInterrupt without Ctrl-C into an Exception; leave the run's own."""
    try:
        yield
    except (Exception, Interrupted, asyncio.CancelledError, _Alarm):
        raise
    except BaseException as error:
        if type(error) is KeyboardInterrupt and is_ctrl_c_pythons_own():
            raise
        raise type(type(error).__name__, (Exception,), {})(str(error)).with_traceback(error.__traceback__) from None


@contextmanager
def staying() -> Iterator[None]:
    """Make `os._exit`, which would end the run, an Exception, except in a forked child; for one thread at a time."""
    end, owner = os._exit, os.getpid()

    def stay(status: int) -> NoReturn:
        if os.getpid() != owner:
            end(status)
        raise SystemExit(f"os._exit({status})")

    os._exit = stay
    try:
        with as_exceptions():
            yield
    finally:
        os._exit = end


_END_S = 1.0
"""Seconds that waiting async rewards get to finish after they are cancelled."""


@dataclass
class RewardLoop:
    """An event loop that starts with the first awaitable, and is replaced if it is blocked."""

    _loop: asyncio.AbstractEventLoop | None = None
    _server: threading.Thread | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_closed: bool = False

    def run(self, coroutine: Coroutine[object, object, object], timeout_s: float | None) -> object:
        """Return the result of `coroutine`. Raise RewardTimeout if the loop does not answer within `timeout_s`."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                name = "reward event loop"
                self._server = threading.Thread(target=_serve, args=[self._loop], daemon=True, name=name)
                self._server.start()
            loop = self._loop
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            if future.done():
                raise  # raised by the function itself
            with self._lock:
                self._loop = None if self._loop is loop else self._loop
            loop.call_soon_threadsafe(loop.stop)
            raise RewardTimeout("no answer: it blocks the event loop, because it waits without `await`") from None
        except CancelledError:
            if self._is_closed:
                raise asyncio.CancelledError from None  # not a failure of the reward: do not retry
            raise

    def close(self) -> None:
        """End the loop and cancel waiting rewards."""
        self._is_closed = True
        if self._loop is not None and self._server is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._server.join(2 * _END_S)
            self._loop = None


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


_PER_BATCH = TRAINERS_OWN - {"environments"}
"""Arguments with one value for the whole batch; all others have one entry per row."""

_FIXED = {str, int, float, bool, bytes, complex, type(None)}
_ARRAYS = ("numpy", "torch")


def with_own_arguments(batch: Batch) -> Batch:
    """Return the batch with deep copies of all lists, dicts, sets and arrays; texts and numbers are immutable."""
    return {name: value if name in TRAINERS_OWN else _own(value) for name, value in batch.items()}


def _own(value: object) -> object:
    if isinstance(value, list) and _FIXED.issuperset(map(type, value)):
        return value.copy()
    if type(value) is list and isinstance(value, list):
        return [_own(item) for item in value]
    if type(value) is dict and isinstance(value, dict):
        return {key: _own(item) for key, item in value.items()}
    if isinstance(value, list | dict | set | bytearray | tuple) or type(value).__module__.partition(".")[0] in _ARRAYS:
        return copy.deepcopy(value)
    return value


def _logged(name: str, value: SupportsFloat) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"log_metric({name!r}, ...) takes a number, and was given {value!r:.60}") from None


RunAsync = Callable[[Coroutine[object, object, object], float | None], object]
"""Run a coroutine on the stack's event loop and return its result; the float is the timeout in seconds."""

_GRACE_S = 1.0
"""An event loop that gives no answer for this long after a deadline counts as blocked."""


def answered(call: Callable[[], object], timeout_s: float | None, run_async: RunAsync) -> object:
    """Return the result of a call, awaited if it is async, within `timeout_s`. Raise as `call_within` does."""
    began = time.monotonic()
    with as_exceptions():
        value = call_within(call, timeout_s)
        if not inspect.isawaitable(value):
            return value
        left_s = None if timeout_s is None else max(0.0, timeout_s - (time.monotonic() - began))
        return run_async(_until(value, left_s, timeout_s), None if left_s is None else left_s + _GRACE_S)


async def _until(awaitable: Awaitable[object], left_s: float | None, timeout_s: float | None) -> object:
    """Await the result, but unlike asyncio.wait_for not the cancellation; leave the function's TimeoutErrors alone."""
    task = asyncio.ensure_future(awaitable)
    if not (await asyncio.wait({task}, timeout=left_s))[0]:
        task.cancel()
        raise RewardTimeout(f"no answer within {timeout_s:g} s")
    return task.result()


Scores = Sequence[Score | TokenValues | BaseException]


@dataclass
class ComponentRun:
    """A component on a batch, with what it needs of the stack: event loop, token offsets, failure recorder."""

    component: Component
    batch: Batch
    run_async: RunAsync
    offsets: Callable[[Batch, int], Sequence[Offset]]
    keep: Callable[[FailedCall], str | None]

    def on(self, rows: Sequence[int]) -> RewardOutcome:
        """Return the batch's outcome, with only `rows` computed. Raise RewardError or RewardFailed as `fail` does."""
        self.outcome = RewardOutcome.empty(len(by_row(self.batch, "completions")))
        began = time.perf_counter()
        if rows:
            self.outcome.calls = len(rows)
            failure = None
            try:
                returned = self._call(rows)
            except Exception as error:  # any error of the user's reward is handled by the reward's own `on_error`
                failure = error
            if failure is None:
                self._store(rows, returned, rows)
            else:  # outside of the handler, so that errors of single rows are not chained to this one
                self._find_failing_rows(rows, failure)
        self.outcome.seconds = time.perf_counter() - began
        return self.outcome

    def _call(self, rows: Sequence[int]) -> Scores:
        """Return the scores of `rows`. Raise the function's errors, RewardTimeout, or RewardError for its result."""
        component, subset = self.component, self._rows_of_batch(rows)
        own = with_own_arguments(subset)
        returned = answered(lambda: component.score(**own), component.timeout_s, self.run_async)

        def read_dense(row: int, value: Sequence[object]) -> TokenValues:
            if component.per is not None:
                return as_turn_values(value, len(turns_of(subset, row)))
            self.outcome.spans[rows[row]] = named_spans(value)
            if "completion_ids" in subset:
                ids = token_ids(subset, row)
                return as_token_values(value, len(ids), lambda: self.offsets(subset, row), component.spread)
            # Scored outside of training, without tokens: each character counts as one.
            text = text_of(by_row(subset, "completions")[row])
            return as_token_values(value, len(value), lambda: characters(text), component.spread)

        return as_scores(component.name, returned, len(rows), read_dense, is_per_turn=component.per is not None)

    def _rows_of_batch(self, rows: Sequence[int]) -> Batch:
        """Return the batch reduced to `rows`; what the function logs is stored at their places in the whole batch."""
        num_rows, subset = len(by_row(self.batch, "completions")), dict(self.batch)
        if len(rows) != num_rows:
            for key in [key for key in subset if key not in _PER_BATCH]:
                subset[key] = [by_row(self.batch, key)[row] for row in rows]
        if "log_extra" in subset:

            def log_extra(column: str, values: list[object]) -> None:
                if len(values) != len(rows):
                    what = f"log_extra({column!r}, ...) takes {len(rows)} values, one per completion"
                    raise TypeError(f"{what}, and was given {len(values)}")
                whole = self.outcome.extra.setdefault(column, [None] * num_rows)
                for row, value in zip(rows, values, strict=True):
                    whole[row] = value

            subset["log_extra"] = log_extra
        if callable(log := subset.get("log_metric")):
            subset["log_metric"] = lambda name, value: log(name, _logged(name, value))
        return subset

    def _store(self, rows: Sequence[int], scores: Scores, asked: Sequence[int]) -> None:
        """Store the scores of `rows`, errors last; `asked` are all rows that the function was first given."""
        outcome = self.outcome
        for row, score in sorted(zip(rows, scores, strict=True), key=lambda pair: isinstance(pair[1], BaseException)):
            if isinstance(score, BaseException):
                FailedCall(self.component, self.batch, asked, row, score).fail(self.outcome, self.keep)
            elif isinstance(score, list):
                (outcome.tokens if self.component.per is None else outcome.turns)[row] = score
                outcome.raw[row] = sum(value for value in score if value is not None)
            else:
                outcome.raw[row] = score

    def _find_failing_rows(self, rows: Sequence[int], error: Exception) -> None:
        """Blame the row of a failed call; try several rows one by one, under `raise` until one passes, too.

        The rows of a prompt stay together for a reward that compares them: one of them alone would get another score.
        A server that is silent, or a function that is late, would cost its whole time again with each row.
        If every row passes alone, the batch fails without a row to blame; `on_error` exclude or a number forgives that.
        """
        component, batch = self.component, self.batch
        is_last, failed = component.on_error == "raise", list[FailedCall]()
        parts, row = [[one] for one in rows], rows[0] if len(rows) == 1 else None
        if compares_rows(component.score):
            prompts, together = by_row(batch, "prompts"), dict[str, list[int]]()
            for one in rows:
                together.setdefault(repr(prompts[one]), []).append(one)
            parts = [*together.values()]
        if isinstance(error, RewardError) and is_last:
            row = None if error.row is None else rows[error.row]
            FailedCall(component, batch, rows, row, error).fail(self.outcome, self.keep)
        if len(parts) == 1 or isinstance(error, RewardTimeout | ServerSilent):
            FailedCall(component, batch, rows, row, error).fail(self.outcome, self.keep)
            return
        for number, part in enumerate(parts, 1):
            try:
                returned = self._call(part)
            except Exception as part_error:  # as above, for one row
                called, blamed = (rows, part[0]) if len(part) == 1 else (part, None)
                failed.append(FailedCall(component, batch, called, blamed, part_error))
                is_slow = isinstance(part_error, RewardTimeout | ServerSilent)
            else:
                is_slow = False
                self._store(part, returned, rows)
            if failed and (not is_last or is_slow or len(failed) < number or number == len(parts)):
                failed.pop(0).fail(self.outcome, self.keep)
        if not self.outcome.num_errors:
            call = FailedCall(component, batch, rows, None, error)
            if is_last:
                call.fail(self.outcome, self.keep)
            self.keep(call)
