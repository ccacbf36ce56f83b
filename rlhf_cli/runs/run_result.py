"""Build the result object that `rlhf train --json` and `rlhf resume --json` print."""

from __future__ import annotations

import os

from rlhf_cli.errors import RunError
from rlhf_cli.runs.metrics_file import read_metrics, reward_spans
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_state import UNREADABLE
from rlhf_cli.runs.run_status import Status, read_status


def run_result(folder: RunFolder) -> dict[str, object]:
    """Return a run's state, each reward at start and end, and the last value of every metric.

    A status that cannot be read has the state UNREADABLE.
    """
    try:
        status = read_status(folder)
    except RunError:
        status = Status(state=UNREADABLE)
    events = read_metrics(folder.metrics) if folder.metrics.is_file() else []
    last: dict[str, object] = {}
    for event in events:
        last |= {name: value for name, value in event.items() if value is not None}
    checkpoint = folder.last_checkpoint()
    model = folder.path / "model"
    return {
        "run": folder.shown,
        "state": status.state,
        "step": status.step,
        "max_steps": status.max_steps,
        "reason": status.reason,
        "job_id": status.job_id,
        "warnings": status.warnings,
        "rewards": {name: {"start": start, "end": end} for name, (start, end) in reward_spans(events).items()},
        "metrics": last,
        "model": os.path.relpath(model) if model.is_dir() else None,
        "last_checkpoint": os.path.relpath(checkpoint) if checkpoint is not None else None,
    }
