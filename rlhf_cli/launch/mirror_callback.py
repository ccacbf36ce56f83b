"""A callback that mirrors a run's completion tables to the tracker during training."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rlhf_cli.tracking.mirror import Mirror


class MirrorCompletions(TrainerCallback):
    """A callback that passes the newest tables to the run's mirror, before old ones are pruned.

    A step's table is written after the `on_log` callbacks. Use it in the main process only.
    """

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Log the table of the previous step."""
        self._mirror.completions(state.global_step)
