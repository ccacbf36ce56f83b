"""Watch the jobs of a sweep from outside and display them."""

from __future__ import annotations

import contextlib
import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live

from rlhf_cli.display.sweep_tables import PRUNED, STARTING, WAITING, JobRow, SweepRows, sweep_table
from rlhf_cli.display.terminal import span
from rlhf_cli.errors import RunError, in_one_line
from rlhf_cli.runs.metrics_file import TOTAL, start_and_end
from rlhf_cli.runs.run_status import FAILED, FINISHED, KILLED, PREEMPTED, RUNNING, Status, describe_state, read_status
from rlhf_cli.sweeps.checked_jobs import ReadyJob
from rlhf_cli.sweeps.sweep_options import SweepOptions
from rlhf_cli.text.redaction import redacted

_PACE_OF = 20
"""Number of log events used to estimate the pace."""
_INSTEAD = ("loss", "mean_token_accuracy")


@dataclass
class JobWatch:
    """A job and its observed progress. `began_at` and `ended_at` are on the monotonic clock, None until they happen."""

    job: ReadyJob
    began_at: float | None = None
    ended_at: float | None = None
    state: str = WAITING
    step: int = 0
    max_steps: int | None = None
    _offset: int = 0
    _points: dict[str, dict[int, float]] = field(default_factory=dict)
    _times: list[tuple[int, float]] = field(default_factory=list)

    @property
    def usual_metric(self) -> str:
        """Return the metric to show unless the user names one: the total reward, else the loss."""
        return next((name for name in (TOTAL, *_INSTEAD) if self._points.get(name)), TOTAL)

    @property
    def took_s(self) -> float | None:
        """Return its duration, or None if it has not ended."""
        return None if self.began_at is None or self.ended_at is None else self.ended_at - self.began_at

    def begins(self) -> None:
        """Record that its process is about to start."""
        self.began_at, self.state = time.monotonic(), STARTING

    def ends(self, status: Status) -> None:
        """Record how it ended."""
        self._read()
        self.ended_at, self.state, self.step = time.monotonic(), status.state, status.step

    def look(self) -> None:
        """Read what it has written since the last call. What cannot be read now is read next time."""
        with contextlib.suppress(RunError, OSError):
            status = read_status(self.job.folder)
            if status.state == RUNNING and self.state == STARTING:
                self.state = RUNNING
            self.max_steps = status.max_steps
            if self.state != STARTING:
                self.step = status.step
            self._read()

    def row(self, metric: str) -> JobRow:
        """Return its table row, with the values of this metric."""
        values = tuple(self.values_of(metric))
        return JobRow(self.job.name, self.state, self.step, self.max_steps, values, self.left_s(), self.ended_at)

    def left_s(self) -> float | None:
        """Return the estimated remaining seconds, or None if unknown."""
        times = self._times[-_PACE_OF:]
        if self.max_steps is None or len(times) < 2 or times[-1][0] <= times[0][0]:
            return None
        per_step = (times[-1][1] - times[0][1]) / (times[-1][0] - times[0][0])
        return max(0.0, (self.max_steps - times[-1][0]) * per_step)

    def values_of(self, metric: str) -> list[float]:
        """Return the logged values of a metric so far, ordered by step."""
        points = self._points.get(metric, {})
        return [points[step] for step in sorted(points)]

    def logged(self) -> set[str]:
        """Return the metrics that it has logged as numbers."""
        return set(self._points)

    def _read(self) -> None:
        file = self.job.folder.metrics
        if not file.is_file():
            return
        if file.stat().st_size < self._offset:  # a resumed run truncated it to a checkpoint
            self._offset = 0
            self._points.clear()
            self._times.clear()
        with file.open("rb") as stream:
            stream.seek(self._offset)
            *lines, rest = stream.read().split(b"\n")
            self._offset = stream.tell() - len(rest)
        for line in lines:
            with contextlib.suppress(ValueError):
                self._take(json.loads(line))

    def _take(self, event: object) -> None:
        step = event.get("step") if isinstance(event, dict) else None
        if not isinstance(event, dict) or not isinstance(step, int) or "train_runtime" in event:
            return
        for name, value in event.items():
            if isinstance(value, int | float) and name not in ("step", "time_s"):
                self._points.setdefault(name, {})[step] = float(value)
        if isinstance(at := event.get("time_s"), int | float):
            self._times.append((step, float(at)))


_STYLE = {FINISHED: "green", PRUNED: "dim", FAILED: "red", KILLED: "red", PREEMPTED: "yellow"}
_REDRAW_EVERY_S = 0.5


class SweepDisplay:
    """Shows a sweep's jobs as they start and end. It is a context manager; leaving it removes the table.

    `num_to_come` is the number of jobs that are not created yet.
    """

    num_to_come: int = 0

    def __init__(self, console: Console, watches: Sequence[JobWatch], options: SweepOptions) -> None:
        self._console = console
        self._watches = watches
        self._at_once, self._metric = options.at_once, options.watch
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
        for watch in self._running():
            watch.look()
        self._live.update(
            sweep_table(self.rows(), height=self._console.height, width=self._console.width), refresh=True
        )
        self._drawn_at = time.monotonic()

    def began(self, watch: JobWatch) -> None:
        """Print that a job starts, where no table shows it."""
        if not self._console.is_terminal:
            begun = sum(job.began_at is not None for job in self._watches)
            again = " again" if watch.job.resume else ""
            self._say(f"[{begun}/{len(self._watches) + self.num_to_come}] {watch.job.name} begins{again}")

    def ended(self, watch: JobWatch, status: Status) -> None:
        """Print how a job ended, with its reason if it failed."""
        if self._console.is_terminal and status.state == FINISHED:
            return
        ended = sum(job.ended_at is not None for job in self._watches)
        metric, left = self._metric or watch.usual_metric, self._left_s()
        start_to_end = start_and_end(watch.values_of(metric))
        state, reason = describe_state(status.state, status.reason), in_one_line(status.reason or "")
        line = f"[{ended}/{len(self._watches) + self.num_to_come}] {watch.job.name} {state}"
        line += f" in {span(watch.took_s)}" if status.state == FINISHED else f" at step {status.step}"
        line += f", {metric} {start_to_end[1]:.3f}" if start_to_end is not None else ""
        if status.state == FINISHED:
            line += f" (about {span(left)} left)" if left else ""
        elif reason and state == status.state:
            line += f": {reason}"
        self._say(line, style=_STYLE.get(status.state))
        if status.state in (FAILED, KILLED):
            shown = shlex.quote(watch.job.folder.shown)
            self._say(f"  rlhf why {shown}  # the error; {watch.job.folder.console.name} there has all of its output")

    def say(self, line: str) -> None:
        """Print a line above the table."""
        self._say(line, style="yellow")

    def rows(self) -> SweepRows:
        """Return the current state of all jobs and the estimated remaining time."""
        begun = [watch for watch in self._watches if watch.began_at is not None]
        return SweepRows(
            [watch.row(self._metric or watch.usual_metric) for watch in self._watches],
            metric=(self._metric or begun[0].usual_metric) if begun else "",
            left_s=self._left_s(),
            elapsed_s=time.monotonic() - self._began_at,
            num_to_come=self.num_to_come,
        )

    def _left_s(self) -> float | None:
        """Return the estimated seconds until the last job ends, or None if the time of a job is unknown.

        A job takes as long as the finished ones did on average, else as long as the running ones will take.
        """
        now = time.monotonic()
        took = [watch.took_s for watch in self._watches if watch.took_s is not None and watch.state == FINISHED]
        running = [(watch.left_s(), watch.began_at or now) for watch in self._running()]
        known = took or [now - began + left for left, began in running if left is not None]
        if not known:
            return None
        one_s = sum(known) / len(known)
        left_s = [one_s if left is None else left for left, _ in running]
        left_s += [one_s] * (sum(watch.state == WAITING for watch in self._watches) + self.num_to_come)
        return max(sum(left_s) / self._at_once, max(left_s, default=0.0))

    def _running(self) -> list[JobWatch]:
        return [watch for watch in self._watches if watch.state in (STARTING, RUNNING)]

    def _say(self, line: str, style: str | None = None) -> None:
        self._console.print(redacted(line), style=style, markup=False, highlight=False, soft_wrap=True)
