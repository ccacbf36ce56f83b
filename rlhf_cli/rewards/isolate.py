"""A reward function in processes that can be killed: a hang, a leak or sys.exit costs a row and not the run.

Rows are scored one at a time, each with its own deadline, in a few worker processes that are replaced when they die
and after so many rows in any case. A worker knows texts, ids and the dataset's columns, not the trainer's state.
"""

from __future__ import annotations

import functools
import inspect
import multiprocessing
import os
from concurrent.futures import TimeoutError as RowTimeout
from typing import Any

from pebble import ProcessExpired, ProcessPool

from rlhf_cli.rewards.resolve import resolve
from rlhf_cli.rewards.run import RewardTimeout

_ROWS_A_WORKER = 1000
"""A worker is replaced after so many rows: whatever the function leaks goes with it."""
_MAX_WORKERS = 8
_STAYS_HERE = frozenset({"trainer_state", "log_metric", "log_extra", "environments"})


class Isolated:
    """Calls `fn` (as in a configuration) with `args` in worker processes. A failed row is an exception in its place."""

    def __init__(self, fn: str, args: dict[str, Any], *, timeout_s: float | None) -> None:
        self._call = functools.partial(_score_row, fn, args)
        self._timeout_s = timeout_s
        self._pool: ProcessPool | None = None

    def __call__(self, **batch: Any) -> list[Any]:
        pool = self._processes()
        columns = {name: values for name, values in batch.items() if name not in _STAYS_HERE}
        rows = [{name: values[row] for name, values in columns.items()} for row in range(len(batch["completions"]))]
        futures = [pool.schedule(self._call, args=[row], timeout=self._timeout_s) for row in rows]
        return [_outcome(future, self._timeout_s) for future in futures]

    def _processes(self) -> ProcessPool:
        if self._pool is None:
            # spawn: a forked copy of a process with torch's threads in it may hang.
            context = multiprocessing.get_context("spawn")
            workers = min(_MAX_WORKERS, os.cpu_count() or 1)
            self._pool = ProcessPool(max_workers=workers, max_tasks=_ROWS_A_WORKER, context=context)
        return self._pool

    def close(self) -> None:
        """End the worker processes."""
        if self._pool is not None:
            self._pool.stop()  # type: ignore[no-untyped-call]
            self._pool.join()
            self._pool = None


def _outcome(future: Any, timeout_s: float | None) -> Any:
    try:
        return future.result()
    except RowTimeout:
        return RewardTimeout(f"no answer within {timeout_s:g} s, its process was killed")
    except ProcessExpired as error:
        return RuntimeError(f"its process ended with code {error.exitcode}")
    except Exception as error:  # the function's own error, to be counted in its row
        return error


def _score_row(fn: str, args: dict[str, Any], row: dict[str, Any]) -> Any:
    """Runs in the worker: one row through the function."""
    try:
        returned = _function(fn, tuple(args.items()))(**{name: [value] for name, value in row.items()})
        if inspect.isawaitable(returned):
            import asyncio

            returned = asyncio.run(_awaited(returned))
        (score,) = returned
    except SystemExit as error:
        raise RuntimeError(f"it called sys.exit({error.code!r})") from None
    return score


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


_resolved: dict[str, Any] = {}


def _function(fn: str, args: tuple[tuple[str, Any], ...]) -> Any:
    key = f"{fn} {args!r}"
    if key not in _resolved:
        _resolved[key] = resolve(fn, dict(args), where=fn)
    return _resolved[key]
