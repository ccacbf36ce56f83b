"""Mirror a run while it trains: no secret leaves it, and no tracker's error ends it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from rlhf_cli.errors import Preempted
from rlhf_cli.runs.metrics_file import Event, read_metrics, table_file
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.tracking.contents import (
    Row,
    alike,
    answer_rows,
    completion_rows,
    evaluation_rows,
    final_values,
    history_rows,
)
from rlhf_cli.runs.tracking.tracking_plan import (
    Ending,
    TrackedRun,
    TrackingPlan,
    at_the_end,
    failed_line,
    shown_metrics,
    tracked_run,
)
from rlhf_cli.runs.tracking.wandb_tracker import WandbTracker
from rlhf_cli.text.redaction import redacted_tree

if TYPE_CHECKING:
    from transformers import TrainerCallback

_EVALUATION_OF_A_POLICY = ("eval_greedy/", "eval_sampled/")

Timings = Callable[[], Mapping[str, float]]
"""Returns profiled seconds by name since the last call; empty without profiling."""


class TakesCallbacks(Protocol):
    """A transformers.Trainer."""

    def add_callback(self, callback: TrainerCallback) -> None: ...


class Mirror:
    """A run's mirror in wandb; it does nothing for other trackers, and after its first error, which is printed.

    With `unique_prompts`, a completion table has one row per prompt.
    """

    def __init__(
        self, folder: RunFolder, plan: TrackingPlan, *, say: Callable[[str], None], unique_prompts: bool = False
    ) -> None:
        self.plan, self.say = plan, say
        is_wandb = plan.tracker == "wandb" and plan.mode != "none"
        self._tracker: WandbTracker | None = None
        if is_wandb:
            self._tracker = WandbTracker("online" if plan.mode == "online" else "offline")
        self._folder, self._unique_prompts = folder, unique_prompts
        self._timings: Timings = dict
        self._kept_to = self._tables_to = 0

    def start(self, run: TrackedRun, timings: Timings) -> None:
        """Start the tracker, and print which later steps it already has and keeps. See Timings for `timings`."""
        assert self._tracker is not None
        self._timings = timings
        with self._dropped_on_error("when it was to begin"):
            self._kept_to = self._tables_to = self._tracker.start(run)
            if self._kept_to > run.goes_on_from:
                self.say(
                    f"wandb has steps {run.goes_on_from + 1} to {self._kept_to} from before the stop and keeps "
                    f"them as they were; metrics.jsonl has them as they are now"
                )

    def event(self, event: Event) -> None:
        """Log an event of metrics.jsonl, with the tables of its evaluation."""
        step = event.get("step")
        if self._tracker is None or not isinstance(step, int) or self._has(step) or at_the_end(event):
            return
        with self._dropped_on_error(f"at step {step}"):
            self._tracker.log(step, {**shown_metrics(event), **self._timings()})
            if any(name.startswith(_EVALUATION_OF_A_POLICY) for name in event):
                self._table("evaluation", step, evaluation_rows(self._folder, step))
                self._table("evaluation_answers", step, answer_rows(self._folder, step))

    def table(self, name: str, step: int, rows: Sequence[Row]) -> None:
        """Log rows as a table of a step, without known secrets; no rows, no table."""
        if self._tracker is not None and not self._has(step):
            with self._dropped_on_error(f"at step {step}"):
                self._table(name, step, rows)

    def completions(self, step: int) -> None:
        """Log the completion table of a step if it exists and was not logged yet."""
        file = table_file(self._folder.path, step)
        if self._tracker is None or step <= self._tables_to or not file.is_file():
            return
        self._tables_to = step
        with self._dropped_on_error(f"at step {step}"):
            self._table("completions", step, completion_rows(file, unique_prompts=self._unique_prompts))

    def finish(self, ending: Ending) -> None:
        """Log the summary of the whole run, over all its attempts, and close the tracker."""
        if self._tracker is None:
            return
        with self._dropped_on_error("at the end"):
            events = read_metrics(self._folder.metrics)
            last = max((step for event in events if isinstance(step := event["step"], int)), default=0)
            self.completions(last)
            self._table("completions_history", last, history_rows(self._folder.path))
            self._tracker.finish(final_values(events), ending)
        self._tracker = None

    def _has(self, step: int) -> bool:
        """Return whether the tracker already has a step; an evaluation before the first step has step 0."""
        return 0 < self._kept_to >= step

    def _table(self, name: str, step: int, rows: Sequence[Row]) -> None:
        if rows and self._tracker is not None:
            self._tracker.table(name, step, redacted_tree([dict(row) for row in alike(rows)], values_only=True))

    @contextlib.contextmanager
    def _dropped_on_error(self, when: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._tracker = None
            self.say(failed_line("wandb", when, error))


@contextlib.contextmanager
def tracked(
    mirror: Mirror,
    folder: RunFolder,
    trainer: TakesCallbacks | None = None,
    *,
    timings: Timings = dict,
    goes_on_from: int = 0,
    recorded_to: int = 0,
) -> Iterator[None]:
    """Keep a run's tracker open during its training, and tell it how the run ended.

    `mirror` logs to wandb; a callback of `trainer` reports to any other tracker. `goes_on_from` is the checkpoint's
    step at which training starts, `recorded_to` the last step that an earlier attempt logged.
    """
    plan = mirror.plan
    if plan.mode == "none":
        yield
        return
    run = tracked_run(folder, goes_on_from=goes_on_from, recorded_to=recorded_to)
    finish = mirror.finish
    if plan.tracker == "wandb":
        mirror.start(run, timings)
    else:
        from rlhf_cli.runs.tracking.report_to import ReportingCallback

        assert trainer is not None
        callback = ReportingCallback(plan.tracker, run, mirror.say)
        trainer.add_callback(callback)
        finish = callback.finish
    ending: Ending = "failed"
    try:
        yield
        ending = "finished"
    except (Preempted, KeyboardInterrupt):
        ending = "preempted"
        raise
    finally:
        finish(ending)
