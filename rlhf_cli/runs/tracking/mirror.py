"""Mirror a run while it trains: no secret leaves it, and no tracker's error ends it."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from rlhf_cli.errors import Preempted, RunError, message_of
from rlhf_cli.process import temporary_attributes
from rlhf_cli.runs.metric_arrays import Window, columns_of, number_of
from rlhf_cli.runs.metrics_file import TOTAL, Event, evaluation_sets, read_metrics, reward_names, table_file
from rlhf_cli.runs.run_folder import RunFolder, in_step, in_training, read_json, write_json
from rlhf_cli.runs.tracking import tracked_run
from rlhf_cli.runs.tracking.tracked_run import Ending, TrackingPlan, is_number, shown_name
from rlhf_cli.runs.tracking.wandb_files import mark_sent, records_of
from rlhf_cli.tables.metrics import TrackingMode
from rlhf_cli.text.json_values import finite_or_none
from rlhf_cli.text.redaction import redacted, redacted_tree

if TYPE_CHECKING:
    import wandb
    from transformers import TrainingArguments

    from rlhf_cli.runs.tracking.report_to import Reporting


_OF_ANSWERS = re.compile(r"^eval_(?:(\w+)_)?(greedy|sampled)/")
_OF_PAIRS = ("loss", "accuracy", "rewards/accuracies", "rewards/margins", "mean_token_accuracy")
_MOST_ANSWERS = 200
_FINISH_TIMEOUT_S = 60.0  # seconds to wait at the end of a run for a slow server; unsent data stays in the run folder

Row: TypeAlias = Mapping[str, object]  # maps column -> value; the rows of a table have the same columns


@dataclass(eq=False)
class Mirror:
    """A run's mirror in its tracker; it does nothing after its first error, which it prints. Only wandb gets tables."""

    folder: RunFolder
    plan: TrackingPlan
    say: Callable[[str], None]
    unique_prompts: bool = False  # one row per prompt in a completion table
    completions_every: int = 1  # steps from one completion table to the next
    _wandb: wandb.Run | None = None
    _reporting: Reporting | None = None
    _goes_on_from: int = 0
    _kept_to: int = 0
    _tables_to: int = 0

    @contextlib.contextmanager
    def attempt(
        self, args: TrainingArguments | None = None, *, goes_on_from: int = 0, recorded_to: int = 0
    ) -> Iterator[None]:
        """Keep a tracker open during a training from the checkpoint at `goes_on_from`, and tell it how that ended.

        `args` are for trackers other than wandb; an earlier attempt logged up to step `recorded_to`.
        """
        run = tracked_run.tracked_run(self.folder, goes_on_from=goes_on_from, recorded_to=recorded_to)
        with self._dropped_on_error("at its start"):
            if self.plan.tracker == "wandb":
                self._start(run)
            else:
                from rlhf_cli.runs.tracking.report_to import Reporting

                assert args is not None
                self._reporting = Reporting(self.plan.tracker, run, args)
        ending: Ending = "failed"
        try:
            yield
            ending = "finished"
        except (Preempted, KeyboardInterrupt):
            ending = "preempted"
            raise
        finally:
            self._finish(ending)

    def _start(self, run: tracked_run.TrackedRun) -> None:
        """Start or resume wandb's run, offline if its server is silent; print which later steps it keeps."""
        import wandb

        # Otherwise wandb leaves a copy of every table in the user's home folder.
        os.environ.setdefault("WANDB_DATA_DIR", str(run.path / "wandb"))
        # What an earlier attempt logged stays as it is: wandb's server drops new rows for steps that it has.
        recorded = run.recorded_to if records_of(run.path) else 0
        try:
            self._wandb = opened(run, self.plan.mode)
        except wandb.errors.Error:  # the server answered a minute ago and no longer does
            self._wandb = opened(run, "offline")
        self._wandb.define_metric(tracked_run.STEP)
        self._wandb.define_metric("*", step_metric=tracked_run.STEP, step_sync=True)
        on_server = self._wandb.step - 1 if self._wandb.resumed else 0
        self._goes_on_from = run.goes_on_from
        self._kept_to = self._tables_to = max(recorded, on_server, run.goes_on_from)
        if self._kept_to > run.goes_on_from:
            self.say(
                f"wandb has steps {run.goes_on_from + 1} to {self._kept_to} from before the stop and keeps "
                f"them as they were; metrics.jsonl has them as they are now"
            )

    def event(self, event: Event) -> None:
        """Log an event of metrics.jsonl, with the answers of its evaluation."""
        step = event.get("step")
        if self._reporting is not None:
            with self._dropped_on_error(f"at step {step}"):
                self._reporting.log(event)
        if not isinstance(step, int) or self._has(step) or tracked_run.at_the_end(event):
            return
        with self._dropped_on_error(f"at step {step}"):
            numbers = {name: float(value) for name, value in event.items() if name != "step" and is_number(value)}
            self._log(step, {shown_name(name): value for name, value in numbers.items()})
            if match := next(filter(None, map(_OF_ANSWERS.match, event)), None):
                eval_set = match[1] or ""
                file = in_training(self.folder) / f"{in_step(step, eval_set)}.completions.jsonl"
                rows: list[Row] = []
                # Not splitlines: an answer may hold U+2028, which JSON does not escape.
                lines = file.read_text(encoding="utf-8").rstrip("\n").split("\n") if file.is_file() else []
                for line in lines[:_MOST_ANSWERS]:
                    answer = json.loads(line)
                    answer |= answer.pop("rewards", None) or {}
                    answer.pop("completion_ids", None)
                    rows.append({"step": step, **answer})
                self.table("evaluation_answers" + f"_{eval_set}" * bool(eval_set), step, rows)

    def table(self, name: str, step: int, rows: Sequence[Row]) -> None:
        """Log rows as a table of a step, without known secrets; no rows, no table. wandb keeps one per step."""
        if not rows or self._has(step):
            return
        with self._dropped_on_error(f"at step {step}"):
            import wandb

            columns = dict.fromkeys(column for row in rows for column in row)
            data = [[_plain(row.get(column)) for column in columns] for row in rows]
            self._log(step, {name: wandb.Table(columns=[*columns], data=redacted_tree(data, values_only=True))})

    def completions(self, step: int, *, is_last: bool = False) -> None:
        """Log the completion table of a step if it exists, was not logged yet, and is due."""
        file = table_file(self.folder.path, step)
        is_due = is_last or not self._tables_to or step >= self._tables_to + self.completions_every
        if self._wandb is None or step <= self._tables_to or not is_due or not file.is_file():
            return
        self._tables_to = step
        with self._dropped_on_error(f"at step {step}"):
            import pyarrow.parquet

            rows: list[Row] = pyarrow.parquet.read_table(file).to_pylist()
            firsts: dict[object, Row] = {}
            for row in rows if self.unique_prompts else ():
                firsts.setdefault(json.dumps(row["prompt"], default=str), row)
            self.table("completions", step, list(firsts.values()) or rows)

    def _finish(self, ending: Ending) -> None:
        """Close the tracker's run, marked by its ending; wandb gets a summary of the whole run, over all attempts."""
        with self._dropped_on_error("at the end"):
            if self._reporting is not None:
                self._reporting.finish(ending)
            events = read_metrics(self.folder.metrics) if self._wandb is not None else []
            last = max((step for event in events if isinstance(step := event["step"], int)), default=0)
            self.completions(last, is_last=True)
            if (run := self._wandb) is not None:
                run.summary.update(final_values(events))
                if ending == "preempted":
                    run.mark_preempting()
                mode, place = run.settings.mode, run.settings.sync_dir
                run.finish(exit_code=0 if ending == "finished" else 1)
                if mode == "online":
                    mark_sent(place)
                self._wandb = None
                return
        if self.plan.tracker == "wandb":
            with contextlib.suppress(Exception):  # a dead service would print a traceback when the process ends
                importlib.import_module("wandb").teardown()

    def _has(self, step: int) -> bool:
        """Return whether the tracker takes nothing for this step: it has its values, or there is no tracker."""
        # What an attempt logs at the step of its checkpoint is the evaluation that a signal broke off before.
        return self._wandb is None or (step <= self._kept_to and not 0 < step == self._goes_on_from)

    def _log(self, step: int, values: Mapping[str, object]) -> None:
        if (run := self._wandb) is not None:
            # A reward that logs to wandb itself increments wandb's step; wandb would drop rows of lower steps.
            run.log({**values, tracked_run.STEP: step}, step=step if step >= run.step else None)

    @contextlib.contextmanager
    def _dropped_on_error(self, when: str) -> Iterator[None]:
        """Open a context that prints an error and drops the tracker. wandb is silent by its settings."""
        is_silent = self.plan.tracker == "wandb"
        try:
            with contextlib.nullcontext() if is_silent else contextlib.redirect_stdout(io.StringIO()):
                yield
        except Exception as error:
            self._wandb = self._reporting = None
            failed = f"{self.plan.tracker} failed {when}"
            logging.getLogger("rlhf").exception(failed)
            with contextlib.suppress(OSError, RunError):  # on a full disk
                known = read_json(self.folder.provenance)
                write_json(self.folder.provenance, {**known, "tracker_failed": failed}, durable=True)
            what = redacted(message_of(error).strip().partition("\n")[0])
            goes_on = "the run goes on without it, and metrics.jsonl has everything"
            self.say(f"warning: {failed} ({type(error).__name__}: {what}); {goes_on}")


def final_values(events: Sequence[Event]) -> dict[str, float]:
    """Return `final/METRIC`, `best/METRIC` and `best_step/METRIC` of the metrics that judge a run.

    These are the total and every component if there are rewards, else loss and accuracy. On training rows, `final` is
    the mean of the last tenth of the log events, and `best` is the best mean over a window of that width, so one lucky
    batch does not count. For an evaluation they are the last and the best value.
    """
    columns = columns_of(events)
    names = reward_names(events)
    judged = [TOTAL, *(f"rewards/{name}/mean" for name in names)] if names else list(_OF_PAIRS)
    answers = [name for name in columns if _OF_ANSWERS.match(name)]
    answers = [name for name in answers if name.endswith("/total") or ("/rewards/" in name and name.count("/") == 2)]
    judged += answers or [prefix + name for prefix in evaluation_sets(columns).values() for name in _OF_PAIRS]
    values: dict[str, float] = {}
    for metric in judged:
        window, shown = Window(num_events=1 if metric.startswith("eval_") else None), shown_name(metric)
        is_loss = metric == "loss" or metric.endswith("_loss")
        best, step = window.best(columns.series(metric), more_is_better=not is_loss)
        found = {"final": number_of(columns, metric, window), "best": best, "best_step": step}
        values |= {f"{what}/{shown}": value for what, value in found.items() if not math.isnan(value)}
    for event in events:
        values |= tracked_run.at_the_end(event)
    return values


def _plain(value: object) -> object:
    """Return a value as one type for a column of a table: a conversation as text, other structures as JSON."""
    messages = value if isinstance(value, list) else []
    if messages and all(isinstance(one, dict) and {"role", "content"} <= {*one} for one in messages):
        return "\n".join(f"{one['role']}: {one['content']}" for one in messages)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else finite_or_none(value)


def opened(run: tracked_run.TrackedRun, mode: TrackingMode) -> wandb.Run:
    """Return an open wandb run, resumed if the server knows its id. Raises wandb's errors."""
    import wandb

    settings = wandb.Settings(
        silent=True, console="off", init_timeout=30.0, finish_timeout=_FINISH_TIMEOUT_S, finish_timeout_raises=True
    )
    with temporary_attributes(sys, argv=[redacted(word) for word in sys.argv]):  # wandb stores the command line
        return wandb.init(
            project=run.project,
            entity=run.entity,
            name=run.name,
            group=run.group,
            job_type=run.job_type,
            tags=list(run.tags),
            notes=run.notes,
            config=dict(run.config),
            dir=str(run.path),
            id=run.run_id,
            resume="allow",
            mode="online" if mode == "online" else "offline",
            settings=settings,
        )
