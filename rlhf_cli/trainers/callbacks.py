"""What a run says while it trains: to metrics.jsonl, to status.json, to the person at the terminal."""

from __future__ import annotations

import math
import sys
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rlhf_cli.runs.folder import RunFolder
from rlhf_cli.runs.metrics import MetricsWriter, held_out_told
from rlhf_cli.runs.status import update_status


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


class Spinner:
    """What happens before the first step: importing, building, loading. A context; silent unless on a terminal."""

    def __init__(self, *, shown: bool) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=Console(file=sys.stdout),
            transient=True,
            disable=not (shown and sys.stdout.isatty()),
        )
        self._task = self._progress.add_task("loading data and models", total=None)

    def __enter__(self) -> Spinner:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, doing: str, step: int, steps: int) -> None:
        """Say what is being done and how far it is."""
        self._progress.update(self._task, description=f"{doing} {step}/{steps}")


class ProgressBar(TrainerCallback):  # type: ignore[misc]
    """A bar with the latest total reward (or loss); a line every tenth of the run where there is no terminal."""

    def __init__(self) -> None:
        # Bound to the terminal as it is now: stdout is redirected while TRL prints its tables.
        console = Console(file=sys.stdout)
        self._is_terminal = console.is_terminal
        self._bar = Progress(
            TextColumn("[bold]training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[latest]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            redirect_stdout=False,
            redirect_stderr=False,
            disable=not self._is_terminal,
        )
        self._console = console
        self._latest = ""

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._task = self._bar.add_task("training", total=state.max_steps, completed=state.global_step, latest="")
        self._bar.start()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._bar.update(self._task, completed=state.global_step)

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
        self._bar.update(self._task, latest=self._latest)
        every = max(1, state.max_steps // 10)
        is_of_training = not any(name.startswith(("eval_", "train_runtime")) for name in logs or {})
        if not self._is_terminal and state.global_step % every == 0 and is_of_training:
            self._console.print(f"step {state.global_step}/{state.max_steps}  {self._latest}")

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
            self.print(Text(f"step {state.global_step}, held out: {told}"))

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.stop()

    def print(self, shown: RenderableType) -> None:
        """Something to stand above the bar."""
        self._console.print(shown)

    def stop(self) -> None:
        """Give the terminal back; also when training ended by an error."""
        self._bar.stop()
