"""Watch the jobs of a sweep from outside, and show them: a table at a terminal, else a line as each starts and ends."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from rlhf_cli.display.terminal import STATE_STYLE, Cell, cut_middle, plain_table, span, sparkline
from rlhf_cli.errors import RunError, in_one_line
from rlhf_cli.runs.metric_arrays import MetricColumns, Window, number_of
from rlhf_cli.runs.metrics_file import TOTAL, events_after
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import RunState, Status, describe_state, pace, read_status
from rlhf_cli.text.redaction import redacted


@dataclass(kw_only=True, eq=False)
class JobProgress:
    """A job of a sweep, and what can be seen of it from outside.

    `resume`: it continues from its newest checkpoint. `began_at` and `ended_at` are on the monotonic clock, None until
    they happen; `left_s` are the estimated seconds to its end, None if unknown. `logged` are its metrics so far.
    """

    name: str
    folder: RunFolder
    resume: bool = False
    state: RunState = RunState.WAITING
    step: int = 0
    max_steps: int | None = None
    began_at: float | None = None
    ended_at: float | None = None
    left_s: float | None = None
    logged: MetricColumns = field(default_factory=MetricColumns)
    _offset: int = 0

    @property
    def usual_metric(self) -> str:
        """Return the metric to show unless the user names one: the total reward, else the loss."""
        return next((name for name in (TOTAL, "loss", "mean_token_accuracy") if self.values_of(name)), TOTAL)

    @property
    def took_s(self) -> float | None:
        """Return its duration, or None if it has not ended."""
        return None if self.began_at is None or self.ended_at is None else self.ended_at - self.began_at

    def begins(self) -> None:
        """Record that its process is about to start."""
        self.began_at, self.state = time.monotonic(), RunState.STARTING

    def ends(self, status: Status) -> None:
        """Record how it ended."""
        self._read()
        self.ended_at, self.state, self.step = time.monotonic(), status.state, status.step

    def look(self) -> None:
        """Read what it has written since the last call. What cannot be read now is read next time."""
        with contextlib.suppress(RunError, OSError):
            status = read_status(self.folder)
            if status.state == RunState.RUNNING and self.state == RunState.STARTING:
                self.state = RunState.RUNNING
            self.max_steps = status.max_steps
            if self.state != RunState.STARTING:
                self.step = status.step
            self._read()
            per_step, _ = pace(self.folder)
            if per_step is not None and self.max_steps is not None:
                self.left_s = max(0, self.max_steps - self.step) * per_step

    def values_of(self, metric: str) -> list[float]:
        """Return the numbers of a metric so far."""
        return list(self.logged.series(self.name_in_log(metric)).finite.values)

    def value_of(self, metric: str) -> float:
        """Return the mean of the last tenth of log events, for an evaluation the last value, or NaN."""
        return number_of(self.logged, self.name_in_log(metric), Window())

    def name_in_log(self, metric: str) -> str:
        """Return the name under which a metric is logged."""
        return metric

    def _read(self) -> None:
        file = self.folder.metrics
        if not file.is_file():
            return
        if file.stat().st_size < self._offset:  # a resumed run truncated it to a checkpoint
            self._offset, self.logged = 0, MetricColumns()
        events, self._offset = events_after(file, self._offset)
        for event in events:
            self.logged.take(int(event["step"]), event)  # type: ignore[call-overload]


_LEAST_OF_A_NAME = 12
_AROUND = 3  # lines other than jobs: the head, the totals, and one below
_REDRAW_EVERY_S = 0.5


class SweepDisplay:
    """Shows a sweep's jobs as they start and end. It is a context manager; leaving it removes the table.

    `at_once` jobs run at a time. `metric` is the one to show, None for each job's usual one. `num_to_come` is the
    number of jobs that are not created yet.
    """

    num_to_come: int = 0

    def __init__(self, console: Console, jobs: Sequence[JobProgress], *, at_once: int, metric: str | None) -> None:
        self._console, self._jobs, self._at_once, self._metric = console, jobs, at_once, metric
        self._began_at = time.monotonic()
        self._drawn_at = float("-inf")
        self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)

    def __enter__(self) -> SweepDisplay:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def look(self) -> None:
        """Redraw the table if there is one and it is due."""
        if not self._console.is_terminal or time.monotonic() < self._drawn_at + _REDRAW_EVERY_S:
            return
        for job in self._running():
            job.look()
        self._live.update(self.table(self._console.height, self._console.width), refresh=True)
        self._drawn_at = time.monotonic()

    def began(self, job: JobProgress) -> None:
        """Print that a job starts, where no table shows it."""
        if not self._console.is_terminal:
            begun = sum(other.began_at is not None for other in self._jobs)
            self.say(f"[{begun}/{self._total}] {job.name} begins{' again' if job.resume else ''}", style=None)

    def ended(self, job: JobProgress, status: Status) -> None:
        """Print how a job ended, with its reason if it failed."""
        if self._console.is_terminal and status.state == RunState.FINISHED:
            return
        ended = sum(other.ended_at is not None for other in self._jobs)
        metric, left = self._metric or job.usual_metric, self.left_s()
        value = job.value_of(metric)
        state, reason = describe_state(status.state, status.reason), in_one_line(status.reason or "")
        line = f"[{ended}/{self._total}] {job.name} {state}"
        line += f" in {span(job.took_s)}" if status.state == RunState.FINISHED else f" at step {status.step}"
        line += "" if math.isnan(value) else f", {metric} {value:.3f}"
        if status.state == RunState.FINISHED:
            line += f" (about {span(left)} left)" if left else ""
        elif reason and state == status.state:
            line += f": {reason}"
        self.say(line, style=STATE_STYLE.get(status.state))
        if status.state in (RunState.FAILED, RunState.KILLED):
            run = job.folder
            self.say(f"  rlhf why {run.typed}  # the error; {run.console.name} there has all of its output", None)

    def say(self, line: str, style: str | None = "yellow") -> None:
        """Print a line above the table."""
        self._console.print(redacted(line), style=style, markup=False, soft_wrap=True)

    def left_s(self) -> float | None:
        """Return the estimated seconds until the last job ends, or None if the time of a job is unknown.

        A job takes as long as the finished ones did on average, else as long as the running ones will take.
        """
        now, running = time.monotonic(), self._running()
        took = [job.took_s for job in self._jobs if job.took_s is not None and job.state == RunState.FINISHED]
        known = took or [now - (job.began_at or now) + job.left_s for job in running if job.left_s is not None]
        if not known:
            return None
        one_s = sum(known) / len(known)
        left_s = [one_s if job.left_s is None else job.left_s for job in running]
        left_s += [one_s] * (sum(job.state == RunState.WAITING for job in self._jobs) + self.num_to_come)
        return max(sum(left_s) / self._at_once, max(left_s, default=0.0))

    def table(self, height: int, width: int) -> Group:
        """Return the table of the jobs in at most `height` lines.

        Running jobs are preferred, then the latest to end, then waiting ones. A name that does not fit into `width`
        columns loses its middle, because names differ at both ends.
        """

        def importance(job: JobProgress) -> tuple[int, float]:
            is_waiting = job.state == RunState.WAITING
            return (2 if is_waiting else 0, 0) if job.ended_at is None else (1, -job.ended_at)

        preferred = sorted(self._jobs, key=importance)[: max(1, height - _AROUND)]
        shown = [job for job in self._jobs if job in preferred]
        begun = next((job for job in self._jobs if job.began_at is not None), None)
        metric = self._metric or (begun.usual_metric if begun is not None else "")
        heads = ("state", "step", metric.removeprefix("rewards/").removesuffix("/mean"), "left", "")
        cells: list[tuple[str, ...]] = []
        for job in shown:
            values = job.values_of(self._metric or job.usual_metric)
            step = f"{job.step}/{job.max_steps}" if job.max_steps is not None else ""
            left = span(job.left_s) if job.state == RunState.RUNNING else ""
            cells.append((job.state, step, f"{values[-1]:.3f}" if values else "", left, sparkline(values)))
        used = sum(max(map(len, column)) + 1 for column in zip(heads, *cells, strict=True))
        most = max(_LEAST_OF_A_NAME, width - used - 1)
        rows: list[list[Cell]] = [
            [cut_middle(job.name, most), (state, STATE_STYLE.get(state, "dim")), *figures]
            for job, (state, *figures) in zip(shown, cells, strict=True)
        ]
        table = plain_table(["run", "state"], heads[1:4], [""], rows=rows, gap=1)
        count, left_s = Counter(job.state for job in self._jobs), self.left_s()
        counted = {
            "of them pruned": count[RunState.PRUNED],
            "failed": count[RunState.FAILED] + count[RunState.KILLED],
            "stopped": count[RunState.PREEMPTED],
            "waiting": count[RunState.WAITING],
        }
        parts = [f"{count[RunState.FINISHED] + count[RunState.PRUNED]} of {self._total} done"]
        parts += [f"{number} {what}" for what, number in counted.items() if number]
        ends = f"about {span(left_s)} left" if left_s is not None else "time left unknown"
        line = f"{', '.join(parts)}; {span(time.monotonic() - self._began_at)} so far, {ends}"
        return Group(table, Text(line, "bold", overflow="ellipsis", no_wrap=True))

    @property
    def _total(self) -> int:
        return len(self._jobs) + self.num_to_come

    def _running(self) -> list[JobProgress]:
        return [job for job in self._jobs if job.state in (RunState.STARTING, RunState.RUNNING)]
