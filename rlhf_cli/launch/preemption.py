"""Describe how to resume a stopped run, and compute by when it must be saved."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime

from rlhf_cli.config.schema.launch_section import Launch
from rlhf_cli.errors import Preempted
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import read_status

_SLURM_END = "SLURM_JOB_END_TIME"


def preempted(folder: RunFolder, reason: str | None = None) -> Preempted:
    """Return the error for a stopped run, with its last saved step and the resume command, in one line.

    `reason` is why it stopped, for its status.
    """
    error = Preempted(_saved(folder))
    error.reason = reason
    return error


def _saved(folder: RunFolder) -> str:
    checkpoint = folder.last_checkpoint()
    go_on = f"`rlhf resume {os.path.relpath(folder.path)}`"
    if checkpoint is None:
        return f"nothing is saved yet; {go_on} begins again"
    step, reached = int(checkpoint.name.rpartition("-")[2]), read_status(folder).step
    lost = f" (it had come to step {reached})" if reached > step else ""
    return f"saved step {step}{lost}; {go_on}"


def must_save_by(launch: Launch, environment: Mapping[str, str] = os.environ) -> float | None:
    """Return when the run must be saved, in seconds since the epoch, or None for no deadline.

    This is the time in `launch` or the end of the Slurm job, whichever is earlier. Raises ValueError if
    `launch.must_save_by` is not a time.
    """
    times = [datetime.fromisoformat(launch.must_save_by).timestamp()] if launch.must_save_by is not None else []
    if environment.get(_SLURM_END, "").isdigit():
        times.append(float(environment[_SLURM_END]))
    return min(times, default=None)
