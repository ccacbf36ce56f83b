"""Compute how fast a run goes and how old its last log event is, from the end of metrics.jsonl."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

from rlhf_cli.runs.run_folder import RunFolder

_TAIL_BYTES = 1 << 16
_EVENTS = 20
"""Number of recent log events used for the pace: a run whose completions grow is now slower than its average."""


@dataclass(frozen=True)
class Pace:
    """A run's speed. `s_per_step` is None until two steps are logged, `log_age_s` is None until one is."""

    s_per_step: float | None
    log_age_s: float | None


def pace(folder: RunFolder) -> Pace:
    """Return the pace of a run, read from the last lines of its metrics.

    Skips lines that are not log events. Raises OSError if the file cannot be read.
    """
    file = folder.metrics
    if not file.is_file():
        return Pace(None, None)
    points = _last_points(folder)
    age_s = max(0.0, time.time() - file.stat().st_mtime)
    if not points:
        return Pace(None, age_s)
    (first_step, first_s), (last_step, last_s) = points[-_EVENTS:][0], points[-1]
    steps = last_step - first_step
    return Pace((last_s - first_s) / steps if steps > 0 else None, age_s)


def training_time_s(folder: RunFolder) -> float | None:
    """Return the training seconds at a run's last log event, or None if it has none.

    Raises OSError if the file cannot be read.
    """
    points = _last_points(folder) if folder.metrics.is_file() else []
    return points[-1][1] if points else None


def _last_points(folder: RunFolder) -> list[tuple[int, float]]:
    """Return (step, training seconds) of the log events at the end of the metrics."""
    with folder.metrics.open("rb") as stream:
        stream.seek(max(0, folder.metrics.stat().st_size - _TAIL_BYTES))
        lines = stream.read().decode("utf-8", errors="replace").splitlines()
    return [point for line in lines if (point := _point(line)) is not None]


def _point(line: str) -> tuple[int, float] | None:
    """Return (step, training seconds) of a line; None if it is cut off, damaged, or the final summary."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    if not isinstance(event, dict) or "train_runtime" in event:
        return None
    step, time_s = event.get("step"), event.get("time_s")
    if not isinstance(step, int) or not isinstance(time_s, int | float):
        return None
    return step, float(time_s)
