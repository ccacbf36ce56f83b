"""Keeps the pulse of a rank through the steps of its training: from the first one it is watched, to the last."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from rlhf_cli.runs.pulse import ENDING, OPTIMIZER, TRAINING, Pulse


class KeepPulse(TrainerCallback):
    """A callback that tells `pulse` what the Trainer does between the seams that trainers/in_phases.py has.

    It is for every rank.
    """

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Say that from now on there is something to get on with."""
        self._pulse.enter(TRAINING)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Say that a step begins."""
        self._pulse.enter(TRAINING)

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Say that all gradients are there."""
        self._pulse.enter(OPTIMIZER)

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Say that the weights have moved."""
        self._pulse.enter(TRAINING)

    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        """Say that a batch of an evaluation is done."""
        self._pulse.beat()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Say that what is left to do takes the time that it takes."""
        self._pulse.enter(ENDING, is_watched=False)
