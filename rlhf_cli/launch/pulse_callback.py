"""A callback that updates a rank's pulse during training, from the first watched step to the last."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from rlhf_cli.runs.pulse import ENDING, OPTIMIZER, TRAINING, Pulse


class KeepPulse(TrainerCallback):
    """A callback that reports the Trainer's phases to `pulse`, beyond those of trainers/in_phases.py.

    Use it on every rank.
    """

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Enter training: progress is watched from here on."""
        self._pulse.enter(TRAINING)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Enter training at the start of a step."""
        self._pulse.enter(TRAINING)

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Enter the optimizer phase: all gradients are complete."""
        self._pulse.enter(OPTIMIZER)

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Return to training after the optimizer step."""
        self._pulse.enter(TRAINING)

    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        """Record progress after a batch of an evaluation."""
        self._pulse.beat()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Enter the ending phase, which is not watched because it may take any time."""
        self._pulse.enter(ENDING, is_watched=False)
