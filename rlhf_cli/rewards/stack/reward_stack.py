"""Evaluate all named rewards of an experiment together.

TRL knows rewards as functions that cannot see each other. The stack gives it one column per reward: the first that TRL
calls evaluates the whole stack, the others return stored results. Rewards are evaluated in the order of the gate graph,
the independent ones of a level at the same time, each only on the rows that its gates leave open.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from rlhf_cli.errors import RewardFailed
from rlhf_cli.process import kept
from rlhf_cli.rewards.stack.aggregating import Schedule
from rlhf_cli.rewards.stack.component import Batch, Component, FailedCall, RewardOutcome, by_row, hints, levels
from rlhf_cli.rewards.stack.returned_scores import Offset, Score, TokenValues, shifted
from rlhf_cli.rewards.stack.token_offsets import Decode, ScoredPart, offsets_of, parts_of_row, place_turns

if TYPE_CHECKING:
    from rlhf_cli.rewards.stack.calling import RewardLoop


class RewardStack:
    """All components, evaluated once per batch. Their order is the order of the columns.

    `record_error` gets every failed row and `keep_failure` every failed call, to save them. Of a reward's last
    `error_window` computed rows, the share `max_error_share` may fail. `running` opens the context in which a reward
    runs. `decode` turns token ids into the text that functions see; without it, spans cannot be mapped to tokens.
    """

    decode: Decode | None = None
    is_training: bool = False
    """Whether rewards that are computed in evaluations only are left out; a trainer sets it before every batch."""

    def __init__(
        self,
        components: Sequence[Component],
        record_error: Callable[[dict[str, object]], None] | None = None,
        *,
        max_error_share: float = 1.0,
        error_window: int = 1,
        running: Callable[[str], AbstractContextManager[object]] = contextlib.nullcontext,
        keep_failure: Callable[[FailedCall], str | None] | None = None,
    ) -> None:
        self.components = list(components)
        self.names = [component.name for component in components]
        self.outcomes: dict[str, RewardOutcome] = {}
        """Name -> outcome of the last batch."""
        self._batch: Batch = {}
        self._by_name = {component.name: component for component in components}
        self._levels = levels({component.name: [gate.by for gate in component.gates] for component in components})
        self._record_error, self.keep_failure = record_error, keep_failure
        self._replays: dict[str, str] = {}
        self._max_error_share = max_error_share
        self._last_rows: dict[str, deque[bool]] = defaultdict(functools.partial(deque, maxlen=error_window))
        """Component -> which of its last computed rows failed."""
        self._running = running
        self._is_in_batch = self._is_evaluated = False
        self.extra_columns: dict[str, set[str]] = {name: set() for name in self._by_name}
        """Component -> the columns that it has logged so far."""
        self._loop: RewardLoop | None = None
        self._pieces: dict[int, str] = {}

    def weights(self, step: int, max_steps: int) -> list[float]:
        """Return every component's weight at that optimizer step."""
        weights = [component.weight for component in self.components]
        return [one.at(step, max_steps) if isinstance(one, Schedule) else one for one in weights]

    def columns(self) -> list[Callable[..., list[Score]]]:
        """Return one callable with TRL's reward signature per component; its `__name__` is the metric's name."""
        columns: list[Callable[..., list[Score]]] = []
        for name in self.names:

            def column(*, _name: str = name, **batch: object) -> list[Score]:
                return self.scores(_name, **batch)

            column.__name__ = name
            columns.append(column)
        return columns

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Open a context in which the stack is evaluated once, whichever column is called first."""
        self._is_in_batch, self._is_evaluated = True, False
        try:
            yield
        finally:
            self._is_in_batch = self._is_evaluated = False

    def scores(self, name: str, /, **batch: object) -> list[Score]:
        """Return one component's raw scores for a batch given as TRL's reward arguments."""
        if not self._is_evaluated:
            self.evaluate(**batch)
            self._is_evaluated = self._is_in_batch
        return self.outcomes[name].raw

    def evaluate(self, /, **batch: object) -> dict[str, RewardOutcome]:
        """Return name -> outcome. `batch` holds prompts, completions, completion_ids and the dataset's columns."""
        from rlhf_cli.rewards.stack.calling import RewardLoop, staying

        self._loop = self._loop or RewardLoop()
        self.outcomes, self._batch = {}, batch
        try:
            with staying(), kept(self.names):  # what those in threads do is put back at the end
                for level in self._levels:
                    # Threads only help rewards that wait elsewhere; those that compute would compete for the
                    # interpreter, and only this thread receives the signals that deadlines need.
                    threaded = [name for name in level if len(level) > 1 and runs_elsewhere(self._by_name[name].score)]
                    futures = {name: self._threads.submit(self._one, self._by_name[name], batch) for name in threaded}
                    outcomes = {name: self._one(self._by_name[name], batch) for name in level if name not in futures}
                    self.outcomes |= outcomes | {name: future.result() for name, future in futures.items()}
        except RewardFailed as error:
            if error.reward is not None and error.row is not None:
                self._keep(error.reward, error.row, str(error.got), batch)
            raise
        for component in self.components:
            outcome = self.outcomes[component.name]
            # A column that was logged once is logged for every batch: TRL would otherwise repeat the last values.
            self.extra_columns[component.name].update(outcome.extra)
            for column in self.extra_columns[component.name]:
                outcome.extra.setdefault(column, [None] * len(outcome.raw))
            for row, message in enumerate(outcome.errors):
                if message is not None:
                    self._keep(component.name, row, message, batch)
            self._count_errors(component, outcome)
        return self.outcomes

    def _count_errors(self, component: Component, outcome: RewardOutcome) -> None:
        """Raise RewardFailed with the last error and the command that replays it if too many rows failed."""
        last = self._last_rows[component.name]
        asked = zip(outcome.errors, outcome.closed_by, strict=True) if outcome.calls else ()
        last.extend(error is not None for error, gate in asked if component.eager or gate is None)
        errors = [error for error in outcome.errors if error is not None]
        if errors and len(last) == last.maxlen and sum(last) / last.maxlen > self._max_error_share:
            raise RewardFailed(
                f"reward {component.name!r} failed on {sum(last)} of the last {last.maxlen} rows",
                where=f"rewards.{component.name}",
                got=errors[-1],
                expected=f"at most {self._max_error_share:.0%}: guards.max_error_share",
                hint=hints("guards.max_error_share=1  # continues", replay=self._replays.get(component.name)),
            )

    def _keep(self, reward: str, row: int, message: str, batch: Batch) -> None:
        """Pass a failed row to the recorder."""
        if self._record_error is not None:
            texts = {name: by_row(batch, f"{name}s")[row] for name in ("prompt", "completion")}
            self._record_error({"reward": reward, "row": row, "error": message, **texts})

    def _keep_call(self, call: FailedCall) -> str | None:
        """Pass a failed call to the recorder; remember the newest replay command for the error that ends a run."""
        replay = None if self.keep_failure is None else self.keep_failure(call)
        if replay:
            self._replays[call.component.name] = replay
        return replay

    def token_values(self, name: str, row: int, divisor: float) -> TokenValues | None:
        """Return a dense row's token values after offset and clip, divided by `divisor`; None for a plain score."""
        tokens, raw = self.outcomes[name].tokens[row], self.outcomes[name].raw[row]
        if tokens is None or raw is None:
            return None
        component = self._by_name[name]
        low, high = component.clip or (-math.inf, math.inf)
        total = min(max(raw - component.offset, low), high)
        values = tokens if total == raw else shifted(tokens, total)
        return [None if value is None else value * (1 / divisor) for value in values]

    def place_turns(self, is_action: Sequence[Sequence[bool]]) -> None:
        """Put the values per turn of the last batch on tokens; is_action: (rows, tokens), True = by the policy."""
        for component in self.components:
            place_turns(component.name, self.outcomes[component.name], is_action, component.spread)

    def parts(self, name: str, row: int) -> list[ScoredPart] | None:
        """Return the parts with rewards of a dense row of the last batch, or its turns; None for a plain score."""
        offsets = None if self.decode is None else self._offsets
        return parts_of_row(self.outcomes[name], self._batch, row, offsets)

    def close(self) -> None:
        """End the event loop, threads and processes of isolated rewards; cancel what still runs."""
        for component in self.components:
            if getattr(component.score, "runs_elsewhere", False):
                component.score.close()  # type: ignore[attr-defined]
        if self._loop is not None:
            self._loop.close()
        if "_threads" in vars(self):
            self._threads.shutdown(wait=False, cancel_futures=True)
            del self._threads

    def _one(self, component: Component, batch: Batch) -> RewardOutcome:
        from rlhf_cli.rewards.stack.calling import ComponentRun

        num_rows = len(by_row(batch, "completions"))
        if component.eval_only and self.is_training:
            return RewardOutcome.empty(num_rows)
        closed = [
            next((gate for gate in component.gates if not gate.is_open(self.outcomes[gate.by].raw[row])), None)
            for row in range(num_rows)
        ]
        rows = [row for row in range(num_rows) if component.eager or closed[row] is None]
        assert self._loop is not None
        with self._running(component.name), kept((component.name, batch["completions"])):
            run = ComponentRun(component, batch, self._loop.run, self._offsets, self._keep_call)
            outcome = run.on(rows)
        outcome.calls_saved = num_rows - len(rows)
        for row, gate in enumerate(closed):
            if gate is not None:
                outcome.closed_by[row] = gate.by
                outcome.fixed[row] = None if gate.otherwise == "exclude" else float(gate.otherwise)
                # eager or not, a closed row has no score
                outcome.raw[row] = outcome.tokens[row] = outcome.turns[row] = None
        return outcome

    def _offsets(self, batch: Batch, row: int) -> Sequence[Offset]:
        if self.decode is None:
            raise ValueError("spans need a tokenizer, and there is none here")
        return offsets_of(batch, row, self.decode, self._pieces)

    @functools.cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(max_workers=max(map(len, self._levels)), thread_name_prefix="reward")


def runs_elsewhere(score: Callable[..., object]) -> bool:
    """Return whether a reward computes outside of the thread that calls it: it is async or isolated.

    One that computes here does not gain from a thread, and can do harm there: a regular expression that matches forever
    holds the interpreter lock, and only in the main thread does it check for the deadline's signal.
    """
    if getattr(score, "runs_elsewhere", False):
        return True
    score = getattr(score, "func", score)
    return any(map(inspect.iscoroutinefunction, (score, type(score).__call__)))
