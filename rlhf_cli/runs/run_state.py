"""Holds what `rlhf status` says of runs."""

from __future__ import annotations

from dataclasses import dataclass

UNREADABLE = "unreadable"
"""The state of a run whose status.json cannot be read."""


@dataclass(frozen=True)
class RunState:
    """A run that is a row of `rlhf status`. Times are in seconds; what is not known is None."""

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
    """All rows, and `notice`: why Slurm could not be asked, None where it was or need not be."""

    rows: list[RunState]
    notice: str | None
