"""Evaluate all named rewards of an experiment together on a batch of completions: the reward stack.

TRL knows rewards as a list of functions that cannot see each other. The stack gives TRL one `Column` a reward; the
first column that TRL calls evaluates the whole stack, the others hand out what is there. So TRL assembles, gathers and
logs its matrix as ever, and what the rewards have to do with one another is decided here.

Rewards are evaluated in the order of the gate graph, the independent ones of a level at the same time, each only on
the rows its gates leave.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from rlhf_cli.errors import RewardFailed
from rlhf_cli.stack.calling import Batch, RewardTimeout, Tools, run_component
from rlhf_cli.stack.component import Component, Outcome
from rlhf_cli.stack.gates import Gate, levels
from rlhf_cli.stack.isolated import Isolated
from rlhf_cli.stack.leaving import staying
from rlhf_cli.stack.returned_scores import Score
from rlhf_cli.stack.token_offsets import Decode, token_offsets
from rlhf_cli.stack.token_values import Offset, TokenValues, multiply, rescale
from rlhf_cli.stack.too_many_errors import ErrorCounts, MaxErrors
from rlhf_cli.stack.weight_schedule import weight_at

_END_S = 1.0
"""Async rewards that still wait at the end have so long to take leave."""

_WORTH_A_THREAD_S = 0.005

RecordError = Callable[[dict[str, object]], None]


class Running(Protocol):
    """Name what the stack tells of the rewards that run at this moment."""

    def __call__(self, name: str) -> AbstractContextManager[None]:
        """Open the context in which the reward `name` runs."""
        ...

    def close(self) -> None:
        """Hear that none will run any more."""
        ...


class RewardStack:
    """Evaluate every component once a batch. The order of the components is the order of the columns.

    `record_error` is given every row that failed, to keep it on disk. `max_errors` is how many may, None any. `running`
    hears which rewards run. `decode` turns token ids into the text that the reward functions see; without it
    spans cannot be placed on tokens.
    """

    decode: Decode | None = None

    def __init__(
        self,
        components: Sequence[Component],
        record_error: RecordError | None = None,
        *,
        max_errors: MaxErrors | None = None,
        running: Running | None = None,
    ) -> None:
        self.components = list(components)
        self.outcomes: dict[str, Outcome] = {}
        """What the last batch gave, by name."""
        self._by_name = {component.name: component for component in components}
        self._levels = levels({component.name: component.gates for component in components})
        self._record_error = record_error
        self._errors = {name: ErrorCounts(max_errors) for name in self._by_name}
        self._running = running
        self._is_in_batch = self._is_evaluated = self._is_closed = False
        self._extra: dict[str, set[str]] = {name: set() for name in self._by_name}
        self._seconds: dict[str, float] = {}
        self._was_interrupted: Callable[[], bool] = bool
        self._tools = Tools(self._run_async, self._offsets, lambda: self._was_interrupted())
        self._pieces: dict[int, str] = {}
        # One event loop for the stack's life, in a thread of its own: a client that a user keeps between calls is
        # bound to its loop, and rewards of one level wait at the same time.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: threading.Thread
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    @property
    def names(self) -> list[str]:
        """Return the components' names, in the order of the columns."""
        return [component.name for component in self.components]

    def weights(self, step: int, max_steps: int) -> list[float]:
        """Return every component's weight while that optimizer step is prepared."""
        return [weight_at(component.weight, step, max_steps) for component in self.components]

    def columns(self) -> list[Column]:
        """Return one callable of TRL's reward signature a component."""
        return [Column(component.name, self) for component in self.components]

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Open a context in which the stack is evaluated once, whichever column is asked first."""
        self._is_in_batch, self._is_evaluated = True, False
        try:
            yield
        finally:
            self._is_in_batch = self._is_evaluated = False

    def scores(self, name: str, **batch: Any) -> list[Score]:
        """Return the raw scores of one component on a batch given as TRL's reward arguments."""
        if not self._is_evaluated:
            self.evaluate(**batch)
            self._is_evaluated = self._is_in_batch
        return self.outcomes[name].raw

    def evaluate(self, **batch: Any) -> dict[str, Outcome]:
        """Return name -> outcome. `batch` holds prompts, completions, completion_ids and the dataset's columns.

        Raises RewardError, naming reward, row and prompt, when a component fails whose `on_error` is `raise`.
        """
        self.outcomes = {}
        try:
            with staying() as self._was_interrupted:
                self._evaluate_levels(batch)
        except RewardFailed as error:
            if error.reward is not None and error.row is not None:
                self._keep(error.reward, error.row, str(error.got), batch)
            raise
        for component in self.components:
            self._account(component, batch)
        return self.outcomes

    def _evaluate_levels(self, batch: Batch) -> None:
        for level in self._levels:
            # Only what waits or computes for a while gains from a thread; for the rest it is mere overhead.
            slow = [name for name in level if self._seconds.get(name, _WORTH_A_THREAD_S) >= _WORTH_A_THREAD_S]
            # One stays in this very thread: libraries that time themselves with signals work only here.
            threaded = slow[1:] if len(slow) == len(level) else slow
            futures = {name: self._threads().submit(self._one, self._by_name[name], batch) for name in threaded}
            outcomes = {name: self._one(self._by_name[name], batch) for name in level if name not in futures}
            outcomes |= {name: future.result() for name, future in futures.items()}
            self.outcomes.update(outcomes)
            self._seconds.update({name: outcome.seconds for name, outcome in outcomes.items()})

    def _keep(self, reward: str, row: int, message: str, batch: Batch) -> None:
        """Hand a failed row to whoever keeps it."""
        if self._record_error is not None:
            record = {"reward": reward, "row": row, "error": message}
            self._record_error({**record, "prompt": batch["prompts"][row], "completion": batch["completions"][row]})

    def token_values(self, name: str, row: int, clipped_sum: float, divisor: float) -> TokenValues | None:
        """Return a dense row's tokens after offset and clip made its sum `clipped_sum` and a deviation divided it.

        None for a row whose score was no dense one.
        """
        tokens = self.outcomes[name].tokens[row]
        if tokens is None:
            return None
        raw = self.outcomes[name].raw[row]
        return multiply(tokens if clipped_sum == raw else rescale(tokens, clipped_sum), 1 / divisor)

    def close(self) -> None:
        """End the event loop, the threads and the processes of isolated rewards; what still runs is cancelled."""
        self._is_closed = True
        if self._running is not None:
            self._running.close()
        for component in self.components:
            if isinstance(component.score, Isolated):
                component.score.close()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._server.join(2 * _END_S)
            self._loop = None
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _one(self, component: Component, batch: Batch) -> Outcome:
        num_rows = len(batch["completions"])
        if not component.gates:
            return self._run(component, batch, range(num_rows))
        closed = [self._closed_by(component, row) for row in range(num_rows)]
        rows = [row for row in range(num_rows) if component.eager or closed[row] is None]
        outcome = self._run(component, batch, rows)
        outcome.calls_saved = num_rows - len(rows)
        # A column that was ever logged is logged for every batch: TRL would repeat the last batch's values.
        self._extra[component.name].update(outcome.extra)
        for column in self._extra[component.name]:
            outcome.extra.setdefault(column, [None] * num_rows)
        for row, gate in enumerate(closed):
            if gate is not None:
                outcome.closed_by[row] = gate.by
                outcome.fixed[row] = None if gate.otherwise == "exclude" else float(gate.otherwise)
                outcome.raw[row] = outcome.tokens[row] = None  # eager or not, a closed row has no score that counts
        return outcome

    def _run(self, component: Component, batch: Batch, rows: Sequence[int]) -> Outcome:
        with self._running(component.name) if self._running is not None else contextlib.nullcontext():
            return run_component(component, batch, rows, self._tools)

    def _closed_by(self, component: Component, row: int) -> Gate | None:
        """Return the first gate of `component` that is closed for `row`, None when all are open."""
        return next((g for g in component.gates if not g.is_open(self.outcomes[g.by].raw[row])), None)

    def _account(self, component: Component, batch: Batch) -> None:
        """Keep failed rows on disk; end the run when too many fail."""
        outcome = self.outcomes[component.name]
        num_errors = outcome.num_errors
        for row, message in enumerate(outcome.errors) if num_errors else ():
            if message is not None:
                self._keep(component.name, row, message, batch)
        self._errors[component.name].add(component, outcome)

    def _run_async(self, awaitable: Awaitable[object], timeout_s: float | None) -> object:
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

    def _offsets(self, ids: Sequence[int]) -> Sequence[Offset]:
        if self.decode is None:
            raise ValueError("spans need the tokens they fall on, and there is no tokenizer here")
        return token_offsets(ids, self.decode, pieces=self._pieces)

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            width = max(len(level) for level in self._levels)
            self._pool = ThreadPoolExecutor(max_workers=width, thread_name_prefix="reward")
        return self._pool


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


class Column:
    """Show one component to TRL as a reward function; TRL takes the metric's name from `__name__`."""

    def __init__(self, name: str, stack: RewardStack) -> None:
        self.__name__ = name
        self._stack = stack

    def __call__(self, **batch: Any) -> list[Score]:
        return self._stack.scores(self.__name__, **batch)
