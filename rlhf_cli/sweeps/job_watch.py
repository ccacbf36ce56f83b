"""Monitor a job of a sweep from outside, by reading its run folder while it trains."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, field

from rlhf_cli.errors import RunError
from rlhf_cli.runs.metrics_file import TOTAL
from rlhf_cli.runs.run_status import RUNNING, Status, read_status
from rlhf_cli.screen.sweep_table import STARTING, WAITING, JobRow
from rlhf_cli.sweeps.ready_job import ReadyJob

_PACE_OF = 20
"""Number of log events used to estimate the pace."""
_INSTEAD = ("loss", "mean_token_accuracy")


@dataclass
class JobWatch:
    """A job and its observed progress. `began_at` and `ended_at` are on the monotonic clock, None until they happen."""

    job: ReadyJob
    metric: str | None
    began_at: float | None = None
    ended_at: float | None = None
    state: str = WAITING
    step: int = 0
    max_steps: int | None = None
    _offset: int = 0
    _points: dict[str, dict[int, float]] = field(default_factory=dict)
    _times: list[tuple[int, float]] = field(default_factory=list)

    @property
    def shown_metric(self) -> str:
        """Return the metric to show: the requested one, else the total reward, else the loss."""
        if self.metric is not None:
            return self.metric
        return next((name for name in (TOTAL, *_INSTEAD) if self._points.get(name)), TOTAL)

    @property
    def took_s(self) -> float | None:
        """Return its duration, or None if it has not ended."""
        return None if self.began_at is None or self.ended_at is None else self.ended_at - self.began_at

    @property
    def will_take_s(self) -> float | None:
        """Return the estimated total duration of a running job, or None if unknown."""
        left = self.left_s()
        return None if self.began_at is None or left is None else time.monotonic() - self.began_at + left

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

    def row(self) -> JobRow:
        """Return its table row."""
        values = tuple(self.values_of(self.shown_metric))
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
