"""Report on a run during training: to metrics.jsonl, status.json and the terminal."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

from rich.text import Text
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rlhf_cli.config.imported_code import imported_since
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.runs.metrics_file import Event, MetricsWriter, describe_held_out
from rlhf_cli.runs.provenance import add_to_provenance, note_files
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import update_status
from rlhf_cli.screen.training_bar import TrainingBar

_LOADED = frozenset(sys.modules)
"""The modules imported before this process imports the trainer and the rewards."""


class Recorder(TrainerCallback):
    """A callback that writes every logged metric and updates step and checkpoint in status.json.

    It passes each event to `mirror`, and adds newly imported code to the provenance. Use it in the main process only.
    """

    def __init__(self, folder: RunFolder, mirror: Callable[[Event], None], experiment: Experiment) -> None:
        self._folder, self._mirror, self._experiment, self._loaded = folder, mirror, experiment, _LOADED
        self._metrics = MetricsWriter(folder.metrics)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Write the first and the last step of this training."""
        update_status(self._folder, step=state.global_step, max_steps=state.max_steps)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Append the logged metrics to metrics.jsonl and the step to status.json."""
        event = self._metrics.write(state.global_step, logs or {})
        update_status(self._folder, step=state.global_step)
        self._mirror(event)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Write the name of the newest checkpoint to status.json, or null if there is none."""
        self._metrics.flush()
        checkpoint = self._folder.last_checkpoint()
        update_status(self._folder, step=state.global_step, last_checkpoint=checkpoint and checkpoint.name)
        self._note_code()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Record code imported after the last checkpoint."""
        self._note_code()

    def _note_code(self) -> None:
        note_files(self._folder, imported_since(self._loaded, self._experiment))
        self._loaded = frozenset(sys.modules)


class RecordWays(TrainerCallback):
    """A callback that writes to the provenance which row packing and generation modes the first step used.

    Use it in the main process only. `ways` returns the content to write.
    """

    def __init__(self, folder: RunFolder, ways: Callable[[], dict[str, object]]) -> None:
        self._folder, self._ways = folder, ways
        self._is_written = False

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Write the modes after the first step."""
        if not self._is_written:
            self._is_written = True
            add_to_provenance(self._folder, **self._ways())


class ShowProgress(TrainerCallback):
    """A callback that advances the bar, and shows the newest total reward (or loss) and every evaluation.

    Use it in the main process only.
    """

    def __init__(self, bar: TrainingBar) -> None:
        self._bar = bar
        self._latest = ""

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Start the bar at the current step."""
        self._bar.start(state.global_step, state.max_steps)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Advance the bar to the step that has just ended."""
        self._bar.move_to(state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Show the newest reward, or the loss if there is no reward, beside the bar and on its own line."""
        for name in ("reward", "loss"):
            value = (logs or {}).get(name)
            if isinstance(value, float) and not math.isnan(value):
                self._latest = f"{name} {value:.3f}"
                break
        self._bar.say_latest(self._latest)
        if not any(name.startswith(("eval_", "train_runtime")) for name in logs or {}):
            self._bar.say_line(state.global_step, self._latest)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Print one line about the evaluation if it has a known metric."""
        summary = describe_held_out(metrics or {})
        if summary:
            self._bar.print(Text(f"step {state.global_step}, held out: {summary}"))

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Stop the bar."""
        self._bar.stop()
