"""Estimate how long runs will take, from finished runs of the same experiment with the same number of steps."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.errors import RunError
from rlhf_cli.launch.freeze import experiment_name
from rlhf_cli.runs.found_runs import runs_below
from rlhf_cli.runs.pace import training_time_s
from rlhf_cli.runs.run_status import FINISHED, read_status, stopped_by_rule
from rlhf_cli.sweeps.checked_jobs import CheckedJob

_NEWEST = 20
"""Maximum number of finished runs to read. Reading all of them would take too long."""


@dataclass(frozen=True)
class ExpectedTime:
    """The time of all jobs one after another, in seconds, and the number of earlier runs that it is based on."""

    seconds: float
    num_runs: int


def expected_time(jobs: Sequence[CheckedJob]) -> ExpectedTime | None:
    """Return the training time of all jobs, or None if no comparable run has finished for one of them."""
    known: dict[tuple[Path, int | None], list[float]] = {}
    total, used = 0.0, 0
    for job in jobs:
        root = Path(job.prepared.experiment.run.root).expanduser() / experiment_name(job.prepared.composed)
        kind = (root, job.num_steps)
        if kind not in known:
            known[kind] = _times_s(*kind)
            used += len(known[kind])
        if not known[kind]:
            return None
        total += statistics.median(known[kind])
    return ExpectedTime(total, used)


def _times_s(root: Path, num_steps: int | None) -> list[float]:
    """Return the training times of the newest finished runs below a folder that had `num_steps` steps."""
    times: list[float] = []
    newest = sorted(runs_below(root), key=lambda run: run.path.stat().st_mtime, reverse=True)
    for run in newest[: _NEWEST * 5]:
        try:
            status = read_status(run)
            if status.state != FINISHED or stopped_by_rule(status) or status.max_steps != num_steps:
                continue
            seconds = training_time_s(run)
        except (RunError, OSError):
            continue
        if seconds is not None:
            times.append(seconds)
        if len(times) == _NEWEST:
            break
    return times
