"""What a run says while it trains: to metrics.jsonl and status.json, and to the person at the terminal."""

from __future__ import annotations

import math
from typing import Any

from rich.text import Text
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rlhf_cli.runs.metrics_file import MetricsWriter, held_out_told
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.status import update_status
from rlhf_cli.screen.training_bar import TrainingBar


class Recorder(TrainerCallback):  # type: ignore[misc]
    """Writes every logged metric and keeps status.json at the last step and checkpoint. For the main process."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._metrics = MetricsWriter(folder.metrics)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        update_status(self._folder, step=state.global_step, max_steps=state.max_steps)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        self._metrics.write(state.global_step, logs or {})
        update_status(self._folder, step=state.global_step)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        checkpoint = self._folder.last_checkpoint()
        update_status(self._folder, step=state.global_step, last_checkpoint=checkpoint and checkpoint.name)


class ShowProgress(TrainerCallback):  # type: ignore[misc]
    """Moves the bar, and shows the newest total reward (or loss) and every evaluation. For the main process."""

    def __init__(self, bar: TrainingBar) -> None:
        self._bar = bar
        self._latest = ""

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._bar.start(state.global_step, state.max_steps)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._bar.move_to(state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
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
        told = held_out_told(metrics or {})
        if told:
            self._bar.print(Text(f"step {state.global_step}, held out: {told}"))

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._bar.stop()
