"""Isolate a run from its tracker: remove secrets from all data sent, and never let its errors end a run."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

from rlhf_cli.runs.metrics_file import Event, read_metrics, table_file
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.tracking.contents import (
    alike,
    answer_rows,
    completion_rows,
    evaluation_rows,
    final_values,
    history_rows,
)
from rlhf_cli.runs.tracking.tracker import Ending, Row, TrackedRun, Tracker, at_the_end, shown_metrics
from rlhf_cli.text.redaction import redacted, redacted_tree

_LOG = logging.getLogger("rlhf")
_EVALUATION_OF_A_POLICY = ("eval_greedy/", "eval_sampled/")

Say = Callable[[str], None]
"""Prints a line on the terminal."""
Timings = Callable[[], Mapping[str, float]]
"""Returns profiled seconds by name since the last call; empty without profiling."""


class Mirror:
    """A run's mirror in a tracker, if any. After its first error the tracker is dropped with one warning.

    With `unique_prompts`, a completion table has one row per prompt.
    """

    def __init__(
        self,
        name: str,
        tracker: Tracker | None,
        folder: RunFolder,
        *,
        say: Say,
        unique_prompts: bool = False,
    ) -> None:
        self._name, self._tracker, self._folder = name, tracker, folder
        self._say, self._unique_prompts = say, unique_prompts
        self._timings: Timings = dict
        self._kept_to = 0
        self._tables_to = 0

    @property
    def mirrors(self) -> bool:
        """Return whether there is a tracker that has not failed."""
        return self._tracker is not None

    def start(self, run: TrackedRun, timings: Timings) -> None:
        """Start the tracker, and print which later steps it already has and keeps. See Timings for `timings`."""
        self._timings = timings
        with self._left_alone_if_it_fails("when it was to begin") as tracker:
            self._kept_to = self._tables_to = tracker.start(run)
            if self._kept_to > run.goes_on_from:
                self._say(
                    f"{self._name} has steps {run.goes_on_from + 1} to {self._kept_to} from before the stop and keeps "
                    f"them as they were; metrics.jsonl has them as they are now"
                )

    def event(self, event: Event) -> None:
        """Log an event of metrics.jsonl, with the tables of its evaluation."""
        step = event.get("step")
        if not isinstance(step, int) or self._has(step) or at_the_end(event):
            return
        with self._left_alone_if_it_fails(f"at step {step}") as tracker:
            tracker.log(step, {**shown_metrics(event), **self._timings()})
            if any(name.startswith(_EVALUATION_OF_A_POLICY) for name in event):
                self._table("evaluation", step, evaluation_rows(self._folder, step))
                self._table("evaluation_answers", step, answer_rows(self._folder, step))

    def table(self, name: str, step: int, rows: Sequence[Row]) -> None:
        """Log rows as a table of a step, without known secrets; no rows, no table."""
        if not self._has(step):
            with self._left_alone_if_it_fails(f"at step {step}"):
                self._table(name, step, rows)

    def completions(self, step: int) -> None:
        """Log the completion table of a step if it exists and was not logged yet."""
        file = table_file(self._folder.path, step)
        if self._tracker is None or step <= self._tables_to or not file.is_file():
            return
        self._tables_to = step
        with self._left_alone_if_it_fails(f"at step {step}"):
            self._table("completions", step, completion_rows(file, unique_prompts=self._unique_prompts))

    def finish(self, ending: Ending) -> None:
        """Log the summary of the whole run, over all its attempts, and close the tracker."""
        with self._left_alone_if_it_fails("at the end") as tracker:
            events = read_metrics(self._folder.metrics)
            last = max((step for event in events if isinstance(step := event["step"], int)), default=0)
            self.completions(last)
            self._table("completions_history", last, history_rows(self._folder.path))
            tracker.finish(final_values(events), ending)
        self._tracker = None

    def _has(self, step: int) -> bool:
        """Return whether the tracker already has a step; an evaluation before the first step has step 0."""
        return 0 < self._kept_to >= step

    def _table(self, name: str, step: int, rows: Sequence[Row]) -> None:
        if rows and self._tracker is not None:
            shown = redacted_tree([dict(row) for row in alike(rows)], values_only=True)
            self._tracker.table(name, step, shown)

    @contextlib.contextmanager
    def _left_alone_if_it_fails(self, when: str) -> Iterator[Tracker]:
        """Open a context with the tracker, or with one that does nothing; drop the tracker on an error."""
        try:
            yield self._tracker if self._tracker is not None else _NoTracker()
        except Exception as error:
            _LOG.exception("%s failed %s", self._name, when)
            said = redacted(str(error).strip().partition("\n")[0])
            self._tracker = None
            self._say(
                f"warning: {self._name} failed {when} ({type(error).__name__}: {said}); the run goes on without it, "
                f"and metrics.jsonl has everything"
            )


class _NoTracker:
    """A tracker that does nothing."""

    def start(self, run: TrackedRun) -> int:
        return run.goes_on_from

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        pass

    def table(self, name: str, step: int, rows: Sequence[Row]) -> None:
        pass

    def finish(self, summary: Mapping[str, float], ending: Ending) -> None:
        pass
