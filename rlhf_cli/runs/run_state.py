"""Data classes for the output of `rlhf status`."""

from __future__ import annotations

from dataclasses import dataclass

UNREADABLE = "unreadable"
"""The state of a run whose status.json cannot be read."""


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
