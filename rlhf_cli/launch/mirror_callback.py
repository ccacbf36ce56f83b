"""Mirrors the tables of completions of a run while it trains: a callback for the worker."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rlhf_cli.tracking.mirror import Mirror


class MirrorCompletions(TrainerCallback):
    """A callback that hands the newest tables to the run's mirror, before those that are not kept are removed.

    A step's table is written after the callbacks have heard of its log. It is for the main process only.
    """

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Log the table of the step before."""
        self._mirror.completions(state.global_step)
