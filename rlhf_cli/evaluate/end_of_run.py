"""Read the last step of the run that made a model; its schedules and running deviations apply in the evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlhf_cli.evaluate.evaluation_target import Target
from rlhf_cli.numerics.reward_columns import RunningDeviation
from rlhf_cli.runs.checkpoint_folders import checkpoint_folder
from rlhf_cli.runs.run_status import read_status
from rlhf_cli.stack.running_state import read_running


@dataclass(frozen=True)
class EndOfRun:
    """The last step, the total number of steps, and the deviations by reward (None if they were not saved)."""

    step: int = 0
    max_steps: int = 1
    running: Mapping[str, RunningDeviation] | None = None


def end_of_run(target: Target) -> EndOfRun:
    """Return the end of the target's run, or of the checkpoint being evaluated.

    Use defaults for a model without a run.
    """
    status = read_status(target.run) if target.run is not None else None
    step = status.step if status else 0
    of_run = checkpoint_folder(target.run.checkpoints, step) if target.run is not None else None
    running = read_running(target.model) or (read_running(of_run) if of_run is not None else None)
    return EndOfRun(step, (status.max_steps if status else None) or 1, running)
