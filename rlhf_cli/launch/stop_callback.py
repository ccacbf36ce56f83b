"""End a training between two steps, at the same step on every rank."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rlhf_cli.analysis.diagnosis.live_rules import on_any_rank
from rlhf_cli.errors import Interrupted
from rlhf_cli.launch.stopping import Stopping
from rlhf_cli.runs.run_status import ANOTHER_RANK
from rlhf_cli.trainers.guard_mixin import EvaluationBrokenOff


@dataclass(eq=False)
class StopBetweenSteps(TrainerCallback):
    """Saves and stops training once `stopping` is due: `has_stopped`. Use it on every rank, after all others."""

    stopping: Stopping
    has_stopped: bool = False
    has_stepped: bool = False
    longest_step_s: float = 0.0
    step_began: float = 0.0

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """From now on, let signals wait for the end of a step."""
        self.stopping.waits_for_step = True

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.step_began = time.monotonic()
        self.has_stepped = True

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.longest_step_s = max(self.longest_step_s, time.monotonic() - self.step_began)
        self._stop_if_due(args, state, control)

    def on_prediction_step(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Abort the evaluation after this batch if any rank must stop; before the first step, raise Interrupted."""
        if not on_any_rank(self.stopping.is_due(self.longest_step_s), args.device):
            return
        if not self.has_stepped:
            raise Interrupted(self.stopping.reason or ANOTHER_RANK)
        self.has_stopped = state.global_step < state.max_steps
        raise EvaluationBrokenOff

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Save and stop after an evaluation as after a step: it may have taken longer than one."""
        if state.global_step > 0:
            self._stop_if_due(args, state, control)

    def _stop_if_due(self, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> None:
        if self.has_stopped or state.global_step >= state.max_steps:
            return
        if on_any_rank(self.stopping.is_due(self.longest_step_s), args.device):
            control.should_save = control.should_training_stop = self.has_stopped = True
