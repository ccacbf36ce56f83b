"""Run a reward function in processes that can be killed.

Rows are scored one at a time, each with its own deadline, in a few worker processes. Workers are replaced when they
die, and after a fixed number of rows. A worker gets texts, ids and the dataset's columns, but not the trainer's state.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import multiprocessing
import os
import signal
from collections.abc import Mapping, Sized
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as RowTimeout
from concurrent.futures.process import BrokenProcessPool

from pebble import ProcessExpired, ProcessFuture, ProcessPool

from rlhf_cli.errors import message_of
from rlhf_cli.process import die_with
from rlhf_cli.rewards.stack.component import RewardTimeout, by_row
from rlhf_cli.rewards.stack.reward_functions import RewardFunction, resolve
from rlhf_cli.tables.trl_values import TRAINERS_OWN
from rlhf_cli.text.redaction import remembered, safe_output_for_good, traceback_of

_ROWS_A_WORKER = 1000
"""A worker is replaced after this many rows, which also frees memory that the function leaks."""
_MAX_WORKERS = 8
_MORE_TRIES = 2
"""Number of retries for a row whose process ended."""

WorkerAnswer = tuple[object, tuple[str, str, str] | None]
"""A worker's answer for a row: its score, and None or the error's type, message and traceback."""


class ProcessEnded(RuntimeError):
    """Raised if a row's process ended before it answered."""


class WorkerTraceback(Exception):
    """Hold an error's traceback as text: frames cannot be sent between processes."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Isolated:
    """Call `fn` (as in a configuration) with `args` in worker processes. A failed row's result is an exception."""

    runs_elsewhere = True  # see reward_stack.py

    def __init__(self, fn: str, args: Mapping[str, object], *, timeout_s: float | None) -> None:
        self._call = functools.partial(_score_row, fn, args)
        self._timeout_s = timeout_s
        self._pool: ProcessPool | None = None
        self._starter: ThreadPoolExecutor | None = None
        self._workers: set[int | None] = set()
        """Process ids of the workers since orphans were last killed, each the leader of a session."""

    @property
    def func(self) -> RewardFunction:
        """The function itself, imported in this process; `inspect.signature` shows what it takes."""
        return _function(*self._call.args)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.func)

    def __call__(self, **batch: object) -> list[object]:
        columns = {name: by_row(batch, name) for name in batch if name not in TRAINERS_OWN}
        rows = [{name: values[row] for name, values in columns.items()} for row in range(len(columns["completions"]))]
        futures = [self._schedule(row) for row in rows]
        self._workers |= {worker.pid for worker in multiprocessing.active_children()}
        outcomes = [_outcome(future, self._timeout_s) for future in futures]
        for place, outcome in enumerate(outcomes):
            # A process that dies on its next row can lose an answer that was on its way. The retries run alone, so a
            # row is only blamed for its own crash.
            for _ in range(_MORE_TRIES):
                if isinstance(outcome, ProcessEnded):
                    outcomes[place] = outcome = _outcome(self._schedule(rows[place]), self._timeout_s)
        if any(isinstance(outcome, RewardTimeout) for outcome in outcomes):
            self._kill_orphans()
        return outcomes

    def _kill_orphans(self) -> None:
        """Kill the processes of pools that the function had opened in workers that are gone."""
        alive = {worker.pid for worker in multiprocessing.active_children()}
        pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        # The kernel may give the number of a dead worker to a stranger, once the worker's session is empty.
        dead, self._workers = self._workers - alive - pids, alive
        for pid in pids:
            with contextlib.suppress(OSError):
                if os.getsid(pid) in dead:
                    os.kill(pid, signal.SIGKILL)

    def _schedule(self, row: Mapping[str, object]) -> ProcessFuture[WorkerAnswer]:
        try:
            return self._processes().schedule(self._call, args=[row], timeout=self._timeout_s)
        except RuntimeError:  # all processes were killed from outside at once, so the pool gave up
            self.close()
            return self._processes().schedule(self._call, args=[row], timeout=self._timeout_s)

    def _processes(self) -> ProcessPool:
        if self._pool is None:
            self._pool = ProcessPool(
                max_workers=min(_MAX_WORKERS, os.cpu_count() or 1),
                max_tasks=_ROWS_A_WORKER,
                # Imports the function, so that the import does not count against the first row's time.
                initializer=_prepare,
                initargs=(*self._call.args, remembered(), os.getpid()),
                # A forked copy of a process with torch's threads in it may hang.
                context=multiprocessing.get_context("spawn"),
            )
            # Workers die with the thread that started them, so start them in a thread that lives long enough. Reading
            # `active` starts the pool.
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
        self._kill_orphans()


def _outcome(future: ProcessFuture[WorkerAnswer], timeout_s: float | None) -> object:
    try:
        value, failure = future.result()
    except RowTimeout:
        return RewardTimeout(f"no answer within {timeout_s:g} s, its process was killed")
    except BrokenProcessPool:
        return ProcessEnded("all of its processes ended at once")
    except ProcessExpired as error:
        return ProcessEnded(f"its process ended with code {error.exitcode}")
    except Exception as error:  # for example, the result does not pickle
        return error
    if failure is None:
        return value
    kind, message, lines = failure  # printed as the worker would print it
    failed: Exception = type(kind, (Exception,), {"__module__": "builtins"})(message)
    failed.__cause__ = WorkerTraceback(lines)
    return failed


def _prepare(fn: str, args: Mapping[str, object], hidden: list[str], parent: int) -> None:
    """Initialise a worker that never prints the `hidden` texts and dies with its `parent`, even hanging."""
    die_with(parent)
    # signals to the trainer's process group must not reach workers: while the trainer saves, it needs their answers
    os.setsid()
    safe_output_for_good(hidden)
    end = os._exit
    # Exit code 0 means that a worker retires after its last row: pebble would wait forever for this row's answer.
    os._exit = lambda status: end(status or 1)
    with contextlib.suppress(Exception, SystemExit):  # errors occur again in the first row, and are reported there
        _function(fn, args)


def _score_row(fn: str, args: Mapping[str, object], row: Mapping[str, object]) -> WorkerAnswer:
    """Score one row in the worker; return (score, None), or (None, the error as text, which unpickles anywhere)."""
    try:
        returned = _function(fn, args)(**{name: [value] for name, value in row.items()})
        if inspect.isawaitable(returned):
            import asyncio

            returned = asyncio.run(asyncio.wait_for(returned, None))
        if isinstance(returned, str | dict) or not isinstance(returned, Sized) or len(returned) != 1:
            raise ValueError(f"it returned {returned!r:.80} for 1 completion")
        return _plain(next(iter(returned))), None  # type: ignore[call-overload]
    except (Exception, SystemExit) as error:  # the reward's own `on_error` handles errors of the user's function
        return None, (type(error).__name__, message_of(error), traceback_of(error))


def _plain(value: object) -> object:
    """Convert arrays and subclasses to plain numbers, None and lists, which unpickle everywhere."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return (tuple if isinstance(value, tuple) else list)(_plain(item) for item in value)
    if value is None:
        return None
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    raise TypeError(f"it returned {type(value).__name__} {value!r:.80}, which is no number")


_resolved: dict[str, RewardFunction] = {}


def _function(fn: str, args: Mapping[str, object]) -> RewardFunction:
    key = f"{fn} {dict(args)!r}"
    if key not in _resolved:
        _resolved[key] = resolve(fn, args, where=fn)
    return _resolved[key]
