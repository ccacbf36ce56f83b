"""Stop training on all ranks at the same place if any rank has a request: after a step, or within an evaluation."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import distributed
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rlhf_cli.errors import Interrupted
from rlhf_cli.launch.stopping import Stopping
from rlhf_cli.trainers.broken_off_evaluation import EvaluationBrokenOff


class StopBetweenSteps(TrainerCallback):
    """A callback that saves and stops training once `stopping` is due. Use it on every rank, after all others.

    `has_stopped` is True if it did; training then ended early, between steps.
    """

    def __init__(self, stopping: Stopping) -> None:
        self.has_stopped = False
        self._stopping = stopping
        self._has_stepped = False
        self._longest_step_s = 0.0
        self._step_began = time.monotonic()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """From now on, let signals wait for the end of a step."""
        self._stopping.steps_begin()

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Record the start time of the step."""
        self._step_began = time.monotonic()
        self._has_stepped = True

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Save and stop if any rank must."""
        self._longest_step_s = max(self._longest_step_s, time.monotonic() - self._step_began)
        self._stop_if_due(args, state, control)

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Abort the evaluation after this batch if any rank must stop: the step before it is not saved yet.

        Raises EvaluationBrokenOff, or Interrupted before the first step, when there is no progress to save.
        """
        if not on_any_rank(self._stopping.is_due(self._longest_step_s), args.device):
            return
        if not self._has_stepped:
            raise Interrupted(self._stopping.reason or "another rank was asked to stop")
        self.has_stopped = state.global_step < state.max_steps
        raise EvaluationBrokenOff

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Save and stop after an evaluation as after a step: it may have taken longer than one."""
        if state.global_step > 0:
            self._stop_if_due(args, state, control)

    def _stop_if_due(self, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> None:
        if self.has_stopped or state.global_step >= state.max_steps:
            return
        if on_any_rank(self._stopping.is_due(self._longest_step_s), args.device):
            control.should_save = control.should_training_stop = self.has_stopped = True


def on_any_rank(flag: bool, device: torch.device) -> bool:
    """Return whether the flag is set on any rank; all ranks must call this at the same place."""
    if not distributed.is_initialized():
        return flag
    gathered = torch.tensor(int(flag), device=device)
    distributed.all_reduce(gathered, op=distributed.ReduceOp.MAX)
    return bool(gathered.item())
