"""Run a reward function in processes that can be killed: a hang, a leak or sys.exit costs a row and not the run.

Rows are scored one at a time, each with its own deadline, in a few worker processes that are replaced when they die
and after so many rows in any case. A worker knows texts, ids and the dataset's columns, not the trainer's state.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import multiprocessing
import os
import traceback
from collections.abc import Awaitable, Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as RowTimeout
from concurrent.futures.process import BrokenProcessPool
from typing import TypeGuard

from pebble import ProcessExpired, ProcessFuture, ProcessPool

from rlhf_cli.parent_death import die_with
from rlhf_cli.redaction import remembered
from rlhf_cli.stack.failed_call import RewardTimeout
from rlhf_cli.stack.reward_batch import by_row
from rlhf_cli.stack.reward_functions import RewardFunction, resolve
from rlhf_cli.tables.reward_arguments import REWARD_ARGUMENTS
from rlhf_cli.terminal_output import safe_output_for_good

_ROWS_A_WORKER = 1000
"""A worker is replaced after so many rows: whatever the function leaks goes with it."""
_MAX_WORKERS = 8
_MORE_TRIES = 2
"""So often a row is tried again whose process ended."""
_STAYS_HERE = frozenset(row.name for row in REWARD_ARGUMENTS.values() if not row.is_text)


Answer = tuple[object, tuple[str, str, str] | None]
"""What a worker says of a row: its score, and in the place of an error its kind, message and traceback."""


class ProcessEnded(RuntimeError):
    """Say that the process of a row ended before it answered."""


class WorkerTraceback(Exception):
    """Hold the traceback of an error as the worker printed it: frames do not cross from one process to another."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Isolated:
    """Call `fn` (as in a configuration) with `args` in worker processes. A failed row is an exception in its place."""

    def __init__(self, fn: str, args: Mapping[str, object], *, timeout_s: float | None) -> None:
        self._call = functools.partial(_score_row, fn, args)
        self._timeout_s = timeout_s
        self._pool: ProcessPool | None = None
        self._starter: ThreadPoolExecutor | None = None

    def __call__(self, **batch: object) -> list[object]:
        columns = {name: by_row(batch, name) for name in batch if name not in _STAYS_HERE}
        rows = [{name: values[row] for name, values in columns.items()} for row in range(len(columns["completions"]))]
        futures = [self._asked(row) for row in rows]
        outcomes = [_outcome(future, self._timeout_s) for future in futures]
        for place, outcome in enumerate(outcomes):
            # A process that dies of its next row may take an answer along that was on its way: alone, each row is
            # asked for its own death only.
            for _ in range(_MORE_TRIES):
                if isinstance(outcome, ProcessEnded):
                    outcomes[place] = outcome = _outcome(self._asked(rows[place]), self._timeout_s)
        return outcomes

    def _asked(self, row: Mapping[str, object]) -> ProcessFuture[Answer]:
        try:
            return self._processes().schedule(self._call, args=[row], timeout=self._timeout_s)
        except RuntimeError:  # all its processes were ended at once, from outside: the pool gives up
            self.close()
            return self._processes().schedule(self._call, args=[row], timeout=self._timeout_s)

    def _processes(self) -> ProcessPool:
        if self._pool is None:
            # spawn: a forked copy of a process with torch's threads in it may hang.
            context = multiprocessing.get_context("spawn")
            workers = min(_MAX_WORKERS, os.cpu_count() or 1)
            # A worker imports the function before its first row, so that the import is not on that row's time.
            self._pool = ProcessPool(
                max_workers=workers,
                max_tasks=_ROWS_A_WORKER,
                initializer=_prepare,
                initargs=(*self._call.args, remembered(), os.getpid()),
                context=context,
            )
            # Workers die with the thread that started them: with one that lives as long as they are wanted. To ask
            # whether the pool is active starts it.
            self._starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="starts isolated workers")
            self._starter.submit(getattr, self._pool, "active").result()
        return self._pool

    def close(self) -> None:
        """End the worker processes."""
        if self._pool is not None:
            self._pool.stop()  # type: ignore[no-untyped-call]
            self._pool.join()
            self._pool = None
        if self._starter is not None:
            self._starter.shutdown()
            self._starter = None


def _outcome(future: ProcessFuture[Answer], timeout_s: float | None) -> object:
    try:
        value, failure = future.result()
    except RowTimeout:
        return RewardTimeout(f"no answer within {timeout_s:g} s, its process was killed")
    except BrokenProcessPool:
        return ProcessEnded("all of its processes ended at once")
    except ProcessExpired as error:
        return ProcessEnded(f"its process ended with code {error.exitcode}")
    except Exception as error:  # what it returned does not pickle, for example
        return error
    if failure is None:
        return value
    kind, message, told = failure
    failed: Exception = type(kind, (Exception,), {"__module__": "builtins"})(message)  # as the worker would print it
    failed.__cause__ = WorkerTraceback(told)
    return failed


def _prepare(fn: str, args: Mapping[str, object], hidden: list[str], parent: int) -> None:
    """Run in a new worker, which prints none of the `hidden` texts and dies with its `parent`: one that hangs in the
    function would not see that nobody waits for its answer any more.

    What goes wrong here goes wrong again in the first row, and is reported there.
    """
    die_with(parent)
    os.setsid()  # who signals the group of the process that trains means that one: it saves, and needs its answers
    safe_output_for_good(hidden)
    end = os._exit
    # Code 0 is how a worker retires after its last row: pebble would wait for ever for this row's answer.
    os._exit = lambda status: end(status or 1)
    with contextlib.suppress(Exception, SystemExit):
        _function(fn, tuple(args.items()))


def _score_row(fn: str, args: Mapping[str, object], row: Mapping[str, object]) -> Answer:
    """Run one row through the function, in the worker: (score, None), or (None, what is known of the error).

    An error goes back in words: an exception of the user's own class need not unpickle over there.
    """
    try:
        returned = _function(fn, tuple(args.items()))(**{name: [value] for name, value in row.items()})
        if inspect.isawaitable(returned):
            import asyncio

            returned = asyncio.run(_awaited(returned))
        if _is_one_row(returned):
            return _plain(returned[0]), None
        raise ValueError(f"it returned {returned!r:.80} for 1 completion")
    except SystemExit as error:
        return None, ("SystemExit", f"it called sys.exit({error.code!r})", traceback.format_exc())
    except Exception as error:  # of the user's reward, for the reward's own policy
        return None, (type(error).__name__, str(error), traceback.format_exc())


def _is_one_row(returned: object) -> TypeGuard[Sequence[object]]:
    """Return whether it is a list, an array or anything like them of one entry."""
    return not isinstance(returned, str | dict) and isinstance(returned, Sized) and len(returned) == 1


def _plain(value: object) -> object:
    """Return numbers, None and lists of them, whatever array or subclass they came in: these unpickle everywhere."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return tuple(_plain(item) for item in value) if isinstance(value, tuple) else [_plain(item) for item in value]
    if value is None or isinstance(value, int | float):
        return value if value is None else int(value) if isinstance(value, int) else float(value)
    raise TypeError(f"it returned {type(value).__name__} {value!r:.80}, which is no number")


async def _awaited(awaitable: Awaitable[object]) -> object:
    return await awaitable


_resolved: dict[str, RewardFunction] = {}


def _function(fn: str, args: tuple[tuple[str, object], ...]) -> RewardFunction:
    key = f"{fn} {args!r}"
    if key not in _resolved:
        _resolved[key] = resolve(fn, dict(args), where=fn)
    return _resolved[key]
