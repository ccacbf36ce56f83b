"""Call one reward on its rows with a deadline and its own copies of the arguments.

The kernel sends the alarm, so it arrives even while the call holds the interpreter lock. `re`, which may match forever
on some text, checks for signals (CPython's Modules/_sre/sre_lib.h), as do sleeping, waiting for a lock and reading from
a socket. Compiled code that never checks for signals can only be stopped in a process that can be killed (`isolate`).

CPU time alone is misleading: on a busy machine, a thread that never waits runs only part of the time.

Only containers are copied; texts and numbers are immutable and shared.

Calls are counted in rows: a row that a gate closed and that was not computed is a saved call.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from types import FrameType

from pebble.concurrent import thread

from rlhf_cli.errors import Interrupted, RewardError
from rlhf_cli.rewards.completion_text import as_completion, text_of
from rlhf_cli.rewards.stack.component import (
    Batch,
    Component,
    FailedCall,
    KeepFailure,
    Outcome,
    RewardTimeout,
    by_row,
    fail,
    refused,
    said_of_replay,
    token_ids,
)
from rlhf_cli.rewards.stack.isolated import LEAVING, left
from rlhf_cli.rewards.stack.returned_scores import (
    Offset,
    PlainScores,
    Score,
    TokenValues,
    as_scores,
    as_token_values,
    named_spans,
)
from rlhf_cli.rewards.stack.token_offsets import characters
from rlhf_cli.tables.trl_values import REWARD_ARGUMENTS

_AGAIN_S = 1.0
"""Seconds between repeated alarms, for a call that catches the first one and continues."""


class Overdue(Exception):
    """Raised if a call did not finish in time."""


class _Alarm(BaseException):
    """Raised inside a call that is out of time; not an Exception, so that `except Exception` does not catch it."""


def call_within(call: Callable[[], object], timeout_s: float, *, name: str) -> object:
    """Return the call's result. Raise its errors, and Overdue after `timeout_s` seconds.

    Outside of the main thread, run it in a new thread called `name`, which is abandoned after the timeout.
    """
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer"):
        return _interrupted_after(call, timeout_s)
    # A Python thread cannot be killed: one that overruns is abandoned as a daemon. `isolate` can kill.
    answer = thread(name=name, daemon=True)(call)()
    if not wait([answer], timeout_s).done:
        raise Overdue
    return answer.result()


def _interrupted_after(call: Callable[[], object], timeout_s: float) -> object:
    """Enforce the deadline by an alarm; an earlier alarm is restored and fires at its time, but not before this one."""
    here: FrameType | None = sys._getframe()
    armed = [True]

    def ring(number: int, frame: FrameType | None) -> None:
        if armed and frame is not here:  # at this frame, the call has not begun or has returned
            raise _Alarm

    before = signal.signal(signal.SIGALRM, ring)
    began = time.monotonic()
    others_s, others_every_s = signal.setitimer(signal.ITIMER_REAL, timeout_s, _AGAIN_S)
    try:
        return call()
    except _Alarm:
        raise Overdue from None
    finally:
        armed.clear()
        here = None  # a frame that holds itself keeps all that called it, and a step's tensors, until gc looks
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        if others_s:
            left_s = max(others_s - (time.monotonic() - began), 1e-3)
            signal.setitimer(signal.ITIMER_REAL, left_s, others_every_s)


_OF_THREAD = "/proc/thread-self/schedstat"


def busy_s() -> float:
    """Return the seconds that this thread has run or was ready to run, from an arbitrary start.

    Without Linux's schedstat, return its CPU time only.
    """
    try:
        with open(_OF_THREAD, "rb") as stream:
            ran_ns, in_line_ns, _ = stream.read().split()
    except (OSError, ValueError):
        return time.thread_time()
    return (int(ran_ns) + int(in_line_ns)) / 1e9


_SHARED = frozenset(row.name for row in REWARD_ARGUMENTS.values() if not row.is_text)
"""The trainer's own objects and functions, which are not data: its state, environments, the loggers."""

_FIXED = {str, int, float, bool, bytes, complex, type(None)}
_ARRAYS = ("numpy", "torch")


def with_own_arguments(batch: Batch) -> Batch:
    """Return the batch with deep copies of all lists, dicts, sets and arrays."""
    return {name: value if name in _SHARED else _own(value) for name, value in batch.items()}


def _own(value: object) -> object:
    kind = type(value)
    if kind in _FIXED:
        return value
    if kind is list and isinstance(value, list):
        return value.copy() if _FIXED.issuperset(map(type, value)) else [_own(item) for item in value]
    if kind is dict and isinstance(value, dict):
        return {key: _own(item) for key, item in value.items()}
    if kind is tuple and isinstance(value, tuple):
        return value if _FIXED.issuperset(map(type, value)) else tuple(_own(item) for item in value)
    if isinstance(value, list | dict | set | bytearray | tuple) or kind.__module__.partition(".")[0] in _ARRAYS:
        return copy.deepcopy(value)
    return value


_PER_BATCH = frozenset(row.name for row in REWARD_ARGUMENTS.values() if not row.is_by_row)
"""Arguments with one value for the whole batch; all others have one entry per row."""

RunAsync = Callable[[Awaitable[object], float | None], object]
"""Run an awaitable on the stack's event loop and return its result; the float is the timeout in seconds."""

_GRACE_S = 1.0
"""An event loop that gives no answer for this long after a deadline counts as blocked."""


@dataclass(frozen=True)
class Tools:
    """The parts of the stack that a component needs: event loop, token offsets, Ctrl-C state, failure recorder."""

    run_async: RunAsync
    offsets: Callable[[Sequence[int]], Sequence[Offset]]
    was_interrupted: Callable[[], bool]
    keep: KeepFailure


def run_component(component: Component, batch: Batch, rows: Sequence[int], tools: Tools) -> Outcome:
    """Return the outcome of `component` on the whole batch; compute only `rows` and leave the others empty.

    Raise RewardError, naming the reward, the row and its prompt, if a row fails and `on_error` is `raise`. Raise
    RewardFailed if the function tries to leave the process, whatever its `on_error`.
    """
    outcome = Outcome.empty(len(by_row(batch, "completions")))
    began = time.perf_counter()
    if rows:
        outcome.calls = len(rows)
        try:
            _compute(component, batch, rows, outcome, tools)
        except LEAVING as error:  # on_error is for failing rows; this was meant to end the process
            if tools.was_interrupted() or isinstance(error, Interrupted):
                raise
            failed = left(component.name, error)
            if replay := said_of_replay(tools.keep(FailedCall(component, batch, rows, None, error))):
                failed.hint = f"{replay}\n{failed.hint}"
            raise failed from error
    outcome.seconds = time.perf_counter() - began
    return outcome


def _compute(component: Component, batch: Batch, rows: Sequence[int], outcome: Outcome, tools: Tools) -> None:
    try:
        returned = _call(component, batch, rows, outcome, tools)
    except Exception as error:  # any error of the user's reward is handled by the reward's own `on_error`
        failed = error
    else:
        _store(component, batch, rows, outcome, returned, rows, tools.keep)
        return
    # Outside of the handler, so that errors of single rows are not chained to this one.
    _settle_blame(component, batch, rows, outcome, failed, tools)


def _call(
    component: Component, batch: Batch, rows: Sequence[int], outcome: Outcome, tools: Tools
) -> Sequence[Score | TokenValues | BaseException]:
    """Return the checked scores of `rows`.

    Raise any error of the function, RewardTimeout if it is late, or RewardError if its result is invalid.
    """
    subset = _rows_of(batch, rows, outcome)
    returned = _within(component, with_own_arguments(subset), outcome, tools.run_async)

    def read_dense(row: int, value: Sequence[object]) -> TokenValues | None:
        outcome.spans[rows[row]] = named_spans(value)
        if "completion_ids" in subset:
            ids = token_ids(subset, row)
            return as_token_values(value, len(ids), lambda: tools.offsets(ids), component.spread)
        # Scored outside of training, without tokens: each character counts as one.
        text = text_of(as_completion(by_row(subset, "completions")[row]))
        is_spans = bool(value) and isinstance(value[0], list | tuple)
        num_tokens = len(text) if is_spans else len(value)
        return as_token_values(value, num_tokens, lambda: characters(text), component.spread)

    return as_scores(component.name, returned, len(rows), read_dense)


def _rows_of(batch: Batch, rows: Sequence[int], outcome: Outcome) -> Batch:
    """Return the batch reduced to `rows`.

    What the function logs is stored at the rows' places in the whole batch. If the batch fails and each row is tried
    alone, the columns that the whole batch logged are overwritten.
    """
    num_rows = len(by_row(batch, "completions"))
    subset = dict(batch)
    if len(rows) != num_rows:
        subset = {key: value for key, value in batch.items() if key in _PER_BATCH}
        columns = {key: by_row(batch, key) for key in batch if key not in _PER_BATCH}
        subset |= {key: [column[row] for row in rows] for key, column in columns.items()}
    if "log_extra" in batch:

        def log_extra(column: str, values: list[object]) -> None:
            whole = outcome.extra.setdefault(column, [None] * num_rows)
            for row, value in zip(rows, values, strict=True):
                whole[row] = value

        subset["log_extra"] = log_extra
    return subset


def _within(component: Component, batch: Batch, outcome: Outcome, run_async: RunAsync) -> object:
    """Call the function for at most `timeout_s`."""

    def score() -> object:
        began_s = busy_s()
        try:
            return component.score(**batch)
        finally:
            outcome.busy_s += busy_s() - began_s

    if component.timeout_s is None:
        value = score()
        return run_async(value, None) if inspect.isawaitable(value) else value
    return _with_deadline(component.name, score, run_async, component.timeout_s)


def _with_deadline(name: str, score: Callable[[], object], run_async: RunAsync, timeout_s: float) -> object:
    began = time.monotonic()
    try:
        value = call_within(score, timeout_s, name=f"reward {name}")
    except Overdue:
        raise RewardTimeout(f"no answer within {timeout_s:g} s") from None
    if not inspect.isawaitable(value):
        return value
    left_s = max(0.0, timeout_s - (time.monotonic() - began))
    return run_async(_until(value, left_s, timeout_s), left_s + _GRACE_S)


async def _until(awaitable: Awaitable[object], left_s: float, timeout_s: float) -> object:
    """Await the result for at most `left_s`.

    Unlike asyncio.wait_for, do not wait for the cancellation, and leave TimeoutErrors of the function alone.
    """
    task = asyncio.ensure_future(awaitable)
    if not (await asyncio.wait({task}, timeout=left_s))[0]:
        task.cancel()
        raise RewardTimeout(f"no answer within {timeout_s:g} s")
    return task.result()


def _store(
    component: Component,
    batch: Batch,
    rows: Sequence[int],
    outcome: Outcome,
    scores: Sequence[Score | TokenValues | BaseException],
    asked: Sequence[int],
    keep: KeepFailure,
) -> None:
    """Store the scores of `rows`; `asked` are all rows that the function was first given."""
    if isinstance(scores, PlainScores) and len(rows) == len(outcome.raw):
        outcome.raw = list(scores)
        return
    for row, score in zip(rows, scores, strict=True):
        if isinstance(score, BaseException):
            fail(FailedCall(component, batch, asked, row, score), outcome, keep)
        elif isinstance(score, list):
            outcome.tokens[row] = score
            outcome.raw[row] = sum(value for value in score if value is not None)
        else:
            outcome.raw[row] = score


def _settle_blame(
    component: Component, batch: Batch, rows: Sequence[int], outcome: Outcome, error: Exception, tools: Tools
) -> None:
    """Find the row to blame for a failed batch.

    A single row takes the blame. Several rows are tried one by one, so that one bad row does not cost the others.
    """
    is_last = component.on_error == "raise"
    if isinstance(error, RewardError) and is_last:
        call = FailedCall(component, batch, rows, None if error.row is None else rows[error.row], error)
        raise refused(call, error, tools.keep(call))
    if len(rows) == 1 or isinstance(error, RewardTimeout):
        call = FailedCall(component, batch, rows, rows[0] if len(rows) == 1 else None, error)
        fail(call, outcome, tools.keep)
        return
    for row in rows:
        try:
            returned = _call(component, batch, [row], outcome, tools)
        except Exception as row_error:  # as above, for one row
            fail(FailedCall(component, batch, rows, row, row_error), outcome, tools.keep)
        else:
            _store(component, batch, [row], outcome, returned, rows, tools.keep)
    if not outcome.num_errors:
        # Each row succeeds alone although the batch failed: that is still a failure, and must not be hidden.
        found = _first_with_others(component, batch, rows, tools) if is_last else None
        call = FailedCall(component, batch, rows, found, error, is_together=found is not None)
        if is_last:
            fail(call, outcome, tools.keep)
        tools.keep(call)


def _first_with_others(component: Component, batch: Batch, rows: Sequence[int], tools: Tools) -> int | None:
    """Return the last row of the shortest prefix of the batch that fails, found by bisection.

    Return None if the whole batch does not fail a second time. A prefix of one row passes: it was tried before.
    """

    def fails(count: int) -> bool:
        try:
            _call(component, batch, rows[:count], Outcome.empty(len(by_row(batch, "completions"))), tools)
        except Exception:  # of the user's function, as before
            return True
        return False

    passing, failing = 1, len(rows)
    if not fails(failing):
        return None
    while failing - passing > 1:
        middle = (passing + failing) // 2
        passing, failing = (passing, middle) if fails(middle) else (middle, failing)
    return rows[failing - 1]
