"""Run one component on the rows its gates leave: sync or async, within its time, with its failures contained.

"Called" is counted in rows: a row that a gate closed and nobody computed is a call saved.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from rlhf_cli.errors import Interrupted, RewardError
from rlhf_cli.rewards.completion_text import as_completion, text_of
from rlhf_cli.stack.component import Component, Outcome
from rlhf_cli.stack.deadline import Overdue, call_within
from rlhf_cli.stack.failed_call import FailedCall, KeepFailure, RewardTimeout, fail, refused, said_of_replay
from rlhf_cli.stack.leaving import LEAVING, left
from rlhf_cli.stack.own_copies import with_own_arguments
from rlhf_cli.stack.returned_scores import PlainScores, Score, as_scores
from rlhf_cli.stack.reward_batch import Batch, by_row, token_ids
from rlhf_cli.stack.thread_clock import busy_s
from rlhf_cli.stack.token_offsets import characters
from rlhf_cli.stack.token_values import Offset, TokenValues, as_token_values, named_spans
from rlhf_cli.tables.reward_arguments import REWARD_ARGUMENTS

_PER_BATCH = frozenset(row.name for row in REWARD_ARGUMENTS.values() if not row.is_by_row)
"""Arguments that are one for the whole batch; every other one has an entry a row."""

RunAsync = Callable[[Awaitable[object], float | None], object]
"""Runs an awaitable on the stack's event loop and returns its result; (awaitable, seconds until it is given up)."""

_GRACE_S = 1.0
"""So long after a deadline of its own an event loop that says nothing is taken to be blocked."""


@dataclass(frozen=True)
class Tools:
    """Hold what running a component needs of the stack: a loop, the characters of sampled tokens, Ctrl-C, and who keeps
    failed calls.
    """

    run_async: RunAsync
    offsets: Callable[[Sequence[int]], Sequence[Offset]]
    was_interrupted: Callable[[], bool]
    keep: KeepFailure


def run_component(component: Component, batch: Batch, rows: Sequence[int], tools: Tools) -> Outcome:
    """Return the outcome of `component` on the whole batch; only `rows` are computed, the others are left empty.

    Raises RewardError, naming the reward, the row and its prompt, when a row fails and `on_error` is `raise`, and
    RewardFailed when the function would leave the process, whatever its `on_error`.
    """
    outcome = Outcome.empty(len(by_row(batch, "completions")))
    began = time.perf_counter()
    if rows:
        outcome.calls = len(rows)
        try:
            _compute(component, batch, rows, outcome, tools)
        except LEAVING as error:  # on_error is for rows that fail; this was meant to end everything
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
    except Exception as error:  # whatever a user's reward raises is for the reward's own policy
        failed = error
    else:
        _store(component, batch, rows, outcome, returned, rows, tools.keep)
        return
    # Out here, so that what a row alone raises is not told as having happened while another error was handled.
    _settle_blame(component, batch, rows, outcome, failed, tools)


def _call(
    component: Component, batch: Batch, rows: Sequence[int], outcome: Outcome, tools: Tools
) -> Sequence[Score | TokenValues | BaseException]:
    """Return the checked scores of `rows`. Raises whatever the function raises, RewardTimeout, or RewardError for
    nonsense.
    """
    subset = _rows_of(batch, rows, outcome)
    returned = _within(component, with_own_arguments(subset), outcome, tools.run_async)

    def read_dense(row: int, value: Sequence[object]) -> TokenValues | None:
        outcome.spans[rows[row]] = named_spans(value)
        if "completion_ids" in subset:
            ids = token_ids(subset, row)
            return as_token_values(value, len(ids), lambda: tools.offsets(ids), component.spread)
        # Scored outside of training, without tokens: a character is one.
        text = text_of(as_completion(by_row(subset, "completions")[row]))
        is_spans = bool(value) and isinstance(value[0], list | tuple)
        num_tokens = len(text) if is_spans else len(value)
        return as_token_values(value, num_tokens, lambda: characters(text), component.spread)

    return as_scores(component.name, returned, len(rows), read_dense)


def _rows_of(batch: Batch, rows: Sequence[int], outcome: Outcome) -> Batch:
    """Return the batch as if it held only `rows`; what the function logs for them lands on their places in the
    whole.

    All rows at once log there as well: where the batch fails and each row is tried alone, a column is written anew.
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
    """Call the function, for at most `timeout_s`."""

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
    """Await the result. Unlike asyncio.wait_for this waits for no cancellation and leaves its own TimeoutErrors
    alone.
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
    """Put the scores of `rows` where they belong; `asked` are all rows that the function had been given at first."""
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
    """Settle the blame of a failed batch: a single row takes it; of several each is tried alone, so that one costs no
    other.
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
        # Every row does alone what the batch did not: still a failure, and not one to hide.
        found = _first_with_others(component, batch, rows, tools) if is_last else None
        call = FailedCall(component, batch, rows, found, error, is_together=found is not None)
        if is_last:
            fail(call, outcome, tools.keep)
        tools.keep(call)


def _first_with_others(component: Component, batch: Batch, rows: Sequence[int], tools: Tools) -> int | None:
    """Return the last row of the shortest beginning of a batch that fails, found by halving; None where the whole does
    not fail a second time. A beginning of one row does not: it was tried.
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
