"""End training between two optimizer steps: after a signal, or by a rule of `stop`."""

from __future__ import annotations

import logging
import time
from typing import Any

import torch
from rich.text import Text
from torch import distributed
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rlhf_cli.analysis.diagnosis.watch import StoppingRules
from rlhf_cli.errors import Interrupted
from rlhf_cli.launch.progress import TrainingScreen
from rlhf_cli.launch.stopping import Stopping
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import ANOTHER_RANK
from rlhf_cli.trainers.guard_mixin import EvaluationBrokenOff
from rlhf_cli.trainers.trl_protocol import TrlBatch


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

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """From now on, let signals wait for the end of a step."""
        self._stopping.steps_begin()

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Record the start time of the step."""
        self._step_began = time.monotonic()
        self._has_stepped = True

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
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
            raise Interrupted(self._stopping.reason or ANOTHER_RANK)
        self.has_stopped = state.global_step < state.max_steps
        raise EvaluationBrokenOff

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
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


_log = logging.getLogger("rlhf")


class StopByRule(TrainerCallback):
    """A callback that saves and stops training once a rule has held long enough. Use it on every rank.

    Rank 0 evaluates the rules and tells the others at the same log event. `has_stopped` is True if a rule stopped the
    training; `reason`, on rank 0, is the rule with its values.
    """

    def __init__(self, folder: RunFolder, screen: TrainingScreen, rules: StoppingRules, *, is_main: bool) -> None:
        self.has_stopped = False
        self.reason: str | None = None
        self._folder = folder
        self._screen = screen
        self._rules = rules
        self._is_main = is_main

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Replay metrics.jsonl if the run is resumed: it has been cut to the checkpoint's step."""
        if self._is_main:
            self._rules.replay(read_metrics(self._folder.metrics))

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: TrlBatch | None = None, **_: Any) -> None:
        """Update the rules with the log event; between steps, save and stop if a rule has held long enough."""
        said = None
        if self._is_main:
            plain = {name: value.item() if hasattr(value, "item") else value for name, value in (logs or {}).items()}
            said = self._rules.take(state.global_step, plain)
            self._warn()
        if self.has_stopped or not 0 < state.global_step < state.max_steps:
            return  # the last step ends the training anyway
        if on_any_rank(said is not None, args.device):
            control.should_save = control.should_training_stop = self.has_stopped = True
            self.reason = said
            if said is not None:
                _log.info("step %d: %s", state.global_step, said)
                self._screen.print(Text(f"step {state.global_step}: {said}"))

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Warn about rules whose metric was never logged."""
        if self._is_main:
            self._warn(at_end=True)

    def _warn(self, *, at_end: bool = False) -> None:
        for text in self._rules.never_logged(at_end=at_end):
            _log.warning(text)
            self._screen.print(Text(f"warning: {text}"))
