"""Describe what `rlhf status` shows of a run: its state and its speed."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass

from rlhf_cli.runs.run_folder import RunFolder

_TAIL_BYTES = 1 << 16
_EVENTS = 20
"""Number of recent log events used for the pace: a run whose completions grow is now slower than its average."""


@dataclass(frozen=True)
class RunState:
    """One row of `rlhf status`. Times are in seconds; unknown values are None."""

    run: str
    state: str
    step: int = 0
    max_steps: int | None = None
    s_per_step: float | None = None
    time_left_s: float | None = None
    log_age_s: float | None = None
    last_checkpoint: str | None = None
    job_id: str | None = None
    slurm_state: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Overview:
    """All rows, and `notice`: why Slurm could not be queried, or None."""

    rows: list[RunState]
    notice: str | None


def pace(folder: RunFolder) -> tuple[float | None, float | None]:
    """Return a run's seconds per step and the seconds since its last log event; None if too few are logged.

    Reads the last lines of its metrics and skips those that are not log events. Raises OSError if it cannot.
    """
    if not folder.metrics.is_file():
        return None, None
    points = _last_points(folder)[-_EVENTS:]
    steps = points[-1][0] - points[0][0] if points else 0
    s_per_step = (points[-1][1] - points[0][1]) / steps if steps > 0 else None
    return s_per_step, max(0.0, time.time() - folder.metrics.stat().st_mtime)


def _last_points(folder: RunFolder) -> list[tuple[int, float]]:
    """Return (step, training seconds) of the log events at the end of the metrics."""
    with folder.metrics.open("rb") as stream:
        stream.seek(max(0, folder.metrics.stat().st_size - _TAIL_BYTES))
        lines = stream.read().decode("utf-8", errors="replace").splitlines()
    points = []
    for line in lines:
        with contextlib.suppress(ValueError):  # a line that is cut off or damaged
            event = json.loads(line)
            if isinstance(event, dict) and "train_runtime" not in event:  # that is in the final summary
                step, time_s = event.get("step"), event.get("time_s")
                if isinstance(step, int) and isinstance(time_s, int | float):
                    points.append((step, float(time_s)))
    return points
