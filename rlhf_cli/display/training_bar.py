"""Show how far a training is: a bar at a terminal, else a line from time to time. An evaluation has its own bar."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sized
from datetime import timedelta
from typing import Any, cast

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text
from transformers import TrainerCallback, TrainerControl, TrainerState

from rlhf_cli.display.terminal import Screen
from rlhf_cli.runs.heartbeat import EVALUATION, Heartbeat
from rlhf_cli.runs.metrics_file import describe_held_out, evaluation_sets

_QUIET_S = 60.0
"""Without a terminal, print a line at least this often while batches or steps end."""
_PASSES = ("sampled", "greedy")
"""What the two passes of a policy's evaluation are called, in their order (trainers/evaluation_mixin.py)."""


class TrainingBar(TrainerCallback):
    """A callback that draws a bar with the newest total reward (or loss), and shows every evaluation above it.

    The time left is by the mean time of a step so far, the evaluations between the steps included. Without a terminal,
    a line is printed every tenth of the run, and after each minute. Use it in the main process only.
    """

    def __init__(self, heartbeat: Heartbeat | None = None) -> None:
        # Bind to the current stdout, because it is redirected while TRL prints its tables.
        self._console = Screen(file=sys.stdout)
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[count]}"),
            TextColumn("{task.fields[latest]}"),
            TimeElapsedColumn(),
            TextColumn("left", style="progress.remaining"),
            TimeRemainingColumn(),
            console=self._console,
            redirect_stdout=False,
            redirect_stderr=False,
            speed_estimate_period=math.inf,
            disable=not self._console.is_terminal,
        )
        self._latest = ""
        self._evaluation: TaskID | None = None
        self._loader: object = None
        self._num_passes = self._num_batches = 0
        self._began = self._said_at = time.monotonic()
        if heartbeat is not None:
            heartbeat.listeners.append(self._hear)

    # --- training ---

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._generates = hasattr(args, "reward_weights")
        fields: dict[str, Any] = {"total": state.max_steps, "completed": state.global_step, "latest": ""}
        self._task = self._bar.add_task("training", count=_steps(state), **fields)
        self._bar.start()

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._bar.update(self._task, completed=state.global_step, count=_steps(state))

    def on_log(
        self, args: Any, state: TrainerState, control: Any, logs: Mapping[str, Any] | None = None, **_: Any
    ) -> None:
        """Show the newest reward beside the bar or on its own line; of a trainer without rewards, the loss."""
        logs = logs or {}
        value = logs.get("reward" if self._generates else "loss")
        if isinstance(value, float) and not math.isnan(value):
            self._latest = f"{'reward' if self._generates else 'loss'} {value:.3f}"
        self._bar.update(self._task, latest=self._latest)
        if any(name.startswith(("eval_", "train_runtime")) for name in logs):
            return
        if state.global_step % max(1, state.max_steps // 10) == 0 or self._is_quiet():
            self._say(f"step {_steps(state)}  {self._latest}")

    # --- evaluation ---

    def _hear(self, phases: tuple[str, ...]) -> None:
        """Draw the bar of an evaluation when it begins, before its first batch has ended, and remove it at its end."""
        is_evaluating = EVALUATION in phases
        if is_evaluating and self._evaluation is None:
            self._loader, self._num_passes = None, 0
            self._evaluation = self._bar.add_task("evaluating", total=None, count="", latest="")
        elif not is_evaluating and self._evaluation is not None:
            self._bar.remove_task(self._evaluation)
            self._evaluation = None

    def on_prediction_step(
        self, args: Any, state: TrainerState, control: TrainerControl, eval_dataloader: Any = None, **_: Any
    ) -> None:
        """Show how many rows are evaluated. The first batch of another loader begins the next pass."""
        if self._evaluation is None:
            return
        if eval_dataloader is not self._loader:
            self._loader, self._num_batches = eval_dataloader, 0
            self._num_passes += 1
        self._num_batches += 1
        doing = _PASSES[min(self._num_passes, len(_PASSES)) - 1] if hasattr(args, "reward_weights") else ""
        rows = len(cast(Sized, eval_dataloader.dataset))
        done = round(rows * self._num_batches / max(1, len(eval_dataloader)))
        self._bar.update(self._evaluation, latest=doing, total=rows, completed=done, count=f"{done} of {rows}")
        if self._is_quiet():
            self._say(f"{', '.join(filter(None, ('evaluating', doing)))} {done} of {rows}")

    def on_evaluate(
        self, args: Any, state: TrainerState, control: Any, metrics: Mapping[str, Any] | None = None, **_: Any
    ) -> None:
        for name, prefix in evaluation_sets(metrics or {}).items():
            if summary := describe_held_out(dict(metrics or {}), prefix):
                self.print(Text(f"step {state.global_step}, held out{f' {name}' if name else ''}: {summary}"))

    # --- lines ---

    def _is_quiet(self) -> bool:
        return time.monotonic() - self._said_at >= _QUIET_S

    def _say(self, text: str) -> None:
        """Print a line with the time so far and the time left, if there is no bar."""
        if not self._console.is_terminal:
            self._said_at = time.monotonic()
            training = next((task for task in self._bar.tasks if task.description == "training"), None)
            left_s = training.time_remaining if training is not None else None
            left = "" if left_s is None else f", left {timedelta(seconds=left_s)}"
            self._console.print(f"{text}  {timedelta(seconds=round(self._said_at - self._began))}{left}")

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.stop()

    def print(self, shown: RenderableType) -> None:
        """Print something above the bar."""
        self._console.print(shown)

    def stop(self) -> None:
        """Release the terminal, also after an error in training."""
        self._bar.stop()


def _steps(state: TrainerState) -> str:
    return f"{state.global_step}/{state.max_steps}"
