"""Write down what a training does while it runs: metrics, heartbeat, and a history that stays short."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from transformers import TrainerCallback, TrainerControl, TrainerState

from rlhf_cli.runs.heartbeat import ENDING, OPTIMIZER, TRAINING, Heartbeat
from rlhf_cli.runs.metrics_file import Event, MetricsWriter, prune_completions
from rlhf_cli.runs.provenance import add_to_provenance, note_files
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import update_status

if TYPE_CHECKING:
    from rlhf_cli.runs.tracking.mirror import Mirror

_KEPT_LOGS = 100


@dataclass(eq=False)
class Recorder(TrainerCallback):
    """Writes every logged metric, and step and checkpoint into status.json. Use it in the main process only."""

    folder: RunFolder
    mirror: Mirror | None  # gets events and completion tables
    keep_last: int | Literal["all"]  # newest completion tables to keep, beside every `keep_every`-th step's
    keep_every: int | None
    new_code: Callable[[], Mapping[str, Path]]  # files for the provenance
    modes: Callable[[], dict[str, object]] | None  # how the first step went

    @cached_property
    def metrics(self) -> MetricsWriter:
        return MetricsWriter(self.folder.metrics)

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        update_status(self.folder, step=state.global_step, max_steps=state.max_steps)
        self.metrics.flush()  # its clock starts now

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Event | None = None, **_: Any) -> None:
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
        note_files(self.folder, self.new_code())

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        note_files(self.folder, self.new_code())
        self._prune()

    def _prune(self) -> None:
        if self.keep_last != "all":
            prune_completions(self.folder.path, last=self.keep_last, every=self.keep_every)


@dataclass(eq=False)
class KeepHeartbeat(TrainerCallback):
    """Reports the Trainer's phases to `heartbeat`, beyond trainers/logging_mixin.py. Use it on every rank."""

    heartbeat: Heartbeat

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Enter training: progress is watched from here on."""
        self.heartbeat.enter(TRAINING)

    on_step_begin = on_optimizer_step = on_train_begin

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Enter the optimizer phase: all gradients are complete."""
        self.heartbeat.enter(OPTIMIZER)

    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        self.heartbeat.beat()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Enter the ending phase, which is not watched because it may take any time."""
        self.heartbeat.enter(ENDING, is_watched=False)


class ShortHistory(TrainerCallback):
    """Keeps the newest 100 training and 100 evaluation log events in memory and in checkpoints, on every rank.

    All events would be 2.6 kB per step of a small GRPO run. Readers of the history need its end, or whether an
    evaluation ever had a metric; metrics.jsonl has the rest.
    """

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Drop older events from `state.log_history`, in place, once it holds twice as many."""
        if len(state.log_history) <= 2 * _KEPT_LOGS:
            return
        kept = {True: 0, False: 0}
        newest: list[dict[str, float]] = []
        for event in reversed(state.log_history):
            is_evaluation = any(name.startswith("eval_") for name in event)
            kept[is_evaluation] += 1
            if kept[is_evaluation] <= _KEPT_LOGS:
                newest.append(event)
        state.log_history[:] = reversed(newest)
