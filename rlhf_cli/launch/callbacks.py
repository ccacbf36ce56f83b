"""What a rank does beside training: record metrics, keep the heartbeat, and end between two steps."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from rich.text import Text
from torch import distributed
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rlhf_cli.config.imported_code import imported_since
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.display.training_bar import TrainingBar
from rlhf_cli.errors import Interrupted
from rlhf_cli.launch.stopping import Stopping
from rlhf_cli.runs.heartbeat import ENDING, OPTIMIZER, TRAINING, Heartbeat
from rlhf_cli.runs.metrics_file import MetricsWriter, prune_completions, read_metrics
from rlhf_cli.runs.provenance import add_to_provenance, note_files
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import ANOTHER_RANK, update_status
from rlhf_cli.trainers.guard_mixin import EvaluationBrokenOff

if TYPE_CHECKING:
    from rlhf_cli.analysis.diagnosis.finding import Finding
    from rlhf_cli.analysis.diagnosis.run_diagnosis import Watch
    from rlhf_cli.analysis.diagnosis.stopping_rules import StoppingRules
    from rlhf_cli.runs.tracking.mirror import Mirror
    from rlhf_cli.trainers.trl_protocol import TrlBatch

_LOADED = frozenset(sys.modules)
"""The modules imported before this process imports the trainer and the rewards."""
_KEPT_LOGS = 100
_IS_EVALUATION = "eval_"
_log = logging.getLogger("rlhf")


@dataclass(eq=False)
class Recorder(TrainerCallback):
    """A callback that writes every logged metric and updates step and checkpoint in status.json.

    It passes each event and completion table to `mirror`, and deletes the tables that `run.keep_completions` does not
    keep. It adds to the provenance newly imported code and, after the first step, `modes`: which row packing and
    generation the step used. Use it in the main process only.
    """

    folder: RunFolder
    mirror: Mirror | None
    experiment: Experiment
    modes: Callable[[], dict[str, object]] | None
    loaded: frozenset[str] = _LOADED

    @cached_property
    def metrics(self) -> MetricsWriter:
        """Return the writer of metrics.jsonl."""
        return MetricsWriter(self.folder.metrics)

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        update_status(self.folder, step=state.global_step, max_steps=state.max_steps)

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: TrlBatch | None = None, **_: Any) -> None:
        event = self.metrics.write(state.global_step, logs or {})
        update_status(self.folder, step=state.global_step)
        if self.mirror is not None:
            self.mirror.event(event)

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Mirror the completions of the step before: they are written after its `on_log` callbacks."""
        if self.mirror is not None:
            self.mirror.completions(state.global_step)
        if state.global_step % 10 == 0:  # listing a folder is slow
            self._prune()

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.modes is not None:
            add_to_provenance(self.folder, **self.modes())
            self.modes = None

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Write the name of the newest checkpoint to status.json, or null if there is none."""
        self.metrics.flush()
        checkpoint = self.folder.last_checkpoint()
        update_status(self.folder, step=state.global_step, last_checkpoint=checkpoint and checkpoint.name)
        self._note_code()

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._note_code()
        self._prune()

    def _prune(self) -> None:
        keep = self.experiment.run.keep_completions
        if keep.last != "all":
            prune_completions(self.folder.path, last=keep.last, every=keep.every)

    def _note_code(self) -> None:
        note_files(self.folder, imported_since(self.loaded, self.experiment))
        self.loaded = frozenset(sys.modules)


@dataclass(eq=False)
class KeepHeartbeat(TrainerCallback):
    """A callback that reports the Trainer's phases to `heartbeat`, beyond those of trainers/logging_mixin.py.

    Use it on every rank.
    """

    heartbeat: Heartbeat

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Enter training: progress is watched from here on."""
        self.heartbeat.enter(TRAINING)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.heartbeat.enter(TRAINING)

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Enter the optimizer phase: all gradients are complete."""
        self.heartbeat.enter(OPTIMIZER)

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        self.heartbeat.enter(TRAINING)

    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        """Record progress after a batch of an evaluation."""
        self.heartbeat.beat()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Enter the ending phase, which is not watched because it may take any time."""
        self.heartbeat.enter(ENDING, is_watched=False)


class ShortHistory(TrainerCallback):
    """A callback that keeps the newest 100 training and 100 evaluation log events, on every rank.

    The Trainer keeps all events in memory and writes them into every checkpoint: 2.6 kB per step of a small GRPO run.
    The full record is metrics.jsonl. Readers of the history only need its end, or whether an evaluation ever had a
    metric: choosing the best checkpoint, the tables of a model card.
    """

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Drop older events from `state.log_history`, in place, once it holds twice as many."""
        if len(state.log_history) <= 2 * _KEPT_LOGS:
            return
        kept = {True: 0, False: 0}
        newest: list[dict[str, float]] = []
        for event in reversed(state.log_history):
            is_evaluation = any(name.startswith(_IS_EVALUATION) for name in event)
            kept[is_evaluation] += 1
            if kept[is_evaluation] <= _KEPT_LOGS:
                newest.append(event)
        state.log_history[:] = reversed(newest)


@dataclass(eq=False)
class SayFindings(TrainerCallback):
    """A callback that warns about findings in the log so far; `kinds` are the enabled ones.

    Findings from an earlier attempt at the run are not repeated. Use it in the main process only.
    """

    folder: RunFolder
    bar: TrainingBar
    kinds: Collection[str]
    watch: Watch | None = None
    has_said: bool = False

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.kinds:
            from rlhf_cli.analysis.diagnosis.finding import RunSetup
            from rlhf_cli.analysis.diagnosis.run_diagnosis import Watch

            setup = RunSetup.of(self.folder.read_config(), self.folder.shown)
            self.watch = Watch(setup, self.kinds, state.max_steps, read_metrics(self.folder.metrics))

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: TrlBatch | None = None, **_: Any) -> None:
        if self.watch is not None:
            self._say(state.global_step, self.watch.take(state.global_step, plain_metrics(logs)))

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.watch is not None:
            self._say(state.global_step, self.watch.look())

    def _say(self, step: int, findings: list[Finding]) -> None:
        for finding in findings:
            change = next(iter(finding.changes), None)
            advice = f"; {change.words} {change.reason}" if change else ""
            text = f"step {step}: {finding.what}{advice}"
            _log.warning(text)
            more = "" if self.has_said else f" (rlhf why {self.folder.shown} has the evidence)"
            self.has_said = True
            self.bar.print(Text(f"warning: {text}{more}"))
        for finding in self.watch.gone if self.watch is not None else ():
            _log.info("step %d: no longer so: %s", step, finding.what)
            self.bar.print(Text(f"step {step}: no longer so: {finding.what}"))


@dataclass(eq=False)
class StopBetweenSteps(TrainerCallback):
    """A callback that saves and stops training once `stopping` is due. Use it on every rank, after all others.

    `has_stopped` is True if it did; training then ended early, between steps.
    """

    stopping: Stopping
    has_stopped: bool = False
    has_stepped: bool = False
    longest_step_s: float = 0.0
    step_began: float = 0.0

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """From now on, let signals wait for the end of a step."""
        self.stopping.steps_begin()

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Record the start time of the step."""
        self.step_began = time.monotonic()
        self.has_stepped = True

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Save and stop if any rank must."""
        self.longest_step_s = max(self.longest_step_s, time.monotonic() - self.step_began)
        self._stop_if_due(args, state, control)

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Abort the evaluation after this batch if any rank must stop: the step before it is not saved yet.

        Raises EvaluationBrokenOff, or Interrupted before the first step, when there is no progress to save.
        """
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


def on_any_rank(flag: bool, device: torch.device) -> bool:
    """Return whether the flag is set on any rank; all ranks must call this at the same place."""
    if not distributed.is_initialized():
        return flag
    gathered = torch.tensor(int(flag), device=device)
    distributed.all_reduce(gathered, op=distributed.ReduceOp.MAX)
    return bool(gathered.item())


def plain_metrics(logs: TrlBatch | None) -> dict[str, object]:
    """Return logged metrics with tensors as numbers."""
    return {name: value.item() if hasattr(value, "item") else value for name, value in (logs or {}).items()}


@dataclass(eq=False)
class StopByRule(TrainerCallback):
    """A callback that saves and stops training once a rule has held long enough. Use it on every rank.

    Rank 0 evaluates the rules and tells the others at the same log event. `has_stopped` is True if a rule stopped the
    training; `reason`, on rank 0, is the rule with its values.
    """

    folder: RunFolder
    bar: TrainingBar
    rules: StoppingRules
    is_main: bool
    has_stopped: bool = False
    reason: str | None = None

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Replay metrics.jsonl if the run is resumed: it has been cut to the checkpoint's step."""
        if self.is_main:
            self.rules.replay(read_metrics(self.folder.metrics))

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: TrlBatch | None = None, **_: Any) -> None:
        """Update the rules with the log event; between steps, save and stop if a rule has held long enough."""
        said = None
        if self.is_main:
            said = self.rules.take(state.global_step, plain_metrics(logs))
            self._warn()
        if self.has_stopped or not 0 < state.global_step < state.max_steps:
            return  # the last step ends the training anyway
        if on_any_rank(said is not None, args.device):
            control.should_save = control.should_training_stop = self.has_stopped = True
            self.reason = said
            if said is not None:
                _log.info("step %d: %s", state.global_step, said)
                self.bar.print(Text(f"step {state.global_step}: {said}"))

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Warn about rules whose metric was never logged."""
        if self.is_main:
            self._warn(at_end=True)

    def _warn(self, *, at_end: bool = False) -> None:
        for text in self.rules.never_logged(at_end=at_end):
            _log.warning(text)
            self.bar.print(Text(f"warning: {text}"))
