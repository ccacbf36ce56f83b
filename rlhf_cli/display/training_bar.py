"""Show how far a training is: a bar at a terminal, else a line from time to time.

The bar says how far an evaluation is. The time left is rich's estimate from the steps since the first one, which also
warms up; it counts evaluations as far as they have taken time.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, cast

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rlhf_cli.display.terminal import Screen
from rlhf_cli.runs.heartbeat import EVALUATION, Heartbeat
from rlhf_cli.runs.metrics_file import describe_held_out

_QUIET_S = 60.0
"""Without a terminal, print a line at least this often while batches or steps end."""
_PASSES = ("evaluating, sampled", "evaluating, greedy")
"""What the two passes of a policy's evaluation are called, in their order (trainers/evaluation_mixin.py)."""


def steps_per_round(args: TrainingArguments) -> float:
    """Return the optimizer steps that one round of rollouts lasts; 1 for a trainer that does not generate."""
    micro_batches = getattr(args, "steps_per_generation", None)
    if not micro_batches:
        return 1.0
    return float(micro_batches * cast(Any, args).num_iterations / args.gradient_accumulation_steps)


class TrainingBar(TrainerCallback):
    """A callback that draws a bar with the newest total reward (or loss), and shows every evaluation above it.

    A trainer that takes several steps with one round of rollouts counts rounds beside the steps. Without a terminal, a
    line is printed every tenth of the run, and after each minute. Use it in the main process only.
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
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            speed_estimate_period=float("inf"),
            redirect_stdout=False,
            redirect_stderr=False,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("training", total=None, count="", latest="")
        self._latest = ""
        self._loader: object = None
        self._num_passes = self._num_batches = 0
        self._began = self._said_at = time.monotonic()
        if heartbeat is not None:
            heartbeat.listeners.append(self._hear)

    # --- training ---

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._per_round, self._generates = steps_per_round(args), hasattr(args, "reward_weights")
        total, completed, count = state.max_steps, state.global_step, self._count(state)
        self._bar.reset(self._task, total=total, completed=completed, count=count)
        self._bar.start()

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._bar.update(self._task, completed=state.global_step, count=self._count(state))

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
            self._say(f"{self._count(state, 'step ')}  {self._latest}")

    def _count(self, state: TrainerState, unit: str = "") -> str:
        steps = f"{unit}{state.global_step}/{state.max_steps}"
        if self._per_round <= 1:
            return steps
        rounds = math.ceil(state.max_steps / self._per_round)
        started = min(rounds, math.floor(state.global_step / self._per_round) + 1)
        return f"round {started}/{rounds}, step {state.global_step}/{state.max_steps}"

    # --- evaluation ---

    def _hear(self, phases: tuple[str, ...]) -> None:
        """Say that an evaluation runs when it begins, before its first batch has ended, and no more at its end."""
        self._loader, self._num_passes = None, 0
        self._bar.update(self._task, description="evaluating" if EVALUATION in phases else "training")

    def on_prediction_step(
        self, args: Any, state: TrainerState, control: TrainerControl, eval_dataloader: Any = None, **_: Any
    ) -> None:
        """Show how many rows are evaluated: `evaluating, greedy 140 of 275`. A new loader begins a new pass."""
        if eval_dataloader is not self._loader:
            self._loader, self._num_batches = eval_dataloader, 0
            self._num_passes += 1
        self._num_batches += 1
        doing = _PASSES[min(self._num_passes, len(_PASSES)) - 1] if hasattr(args, "reward_weights") else "evaluating"
        rows = len(eval_dataloader.dataset)
        done = round(rows * self._num_batches / max(1, len(eval_dataloader)))
        text = f"{doing} {done} of {rows}"
        self._bar.update(self._task, description=text)
        if self._is_quiet():
            self._say(text)

    def on_evaluate(
        self, args: Any, state: TrainerState, control: Any, metrics: Mapping[str, Any] | None = None, **_: Any
    ) -> None:
        summary = describe_held_out(dict(metrics or {}))
        if summary:
            self.print(Text(f"step {state.global_step}, held out: {summary}"))

    # --- lines ---

    def _is_quiet(self) -> bool:
        return time.monotonic() - self._said_at >= _QUIET_S

    def _say(self, text: str) -> None:
        """Print a line with the time so far and the time left, unless a bar shows them."""
        if not self._console.is_terminal:
            self._said_at = time.monotonic()
            left_s = self._bar.tasks[0].time_remaining
            left = "-:--:--" if left_s is None else _clock(left_s)
            self._console.print(f"{text}  {_clock(self._said_at - self._began)}, left {left}", highlight=False)

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.stop()

    def print(self, shown: RenderableType) -> None:
        """Print something above the bar."""
        self._console.print(shown)

    def stop(self) -> None:
        """Release the terminal, also after an error in training."""
        self._bar.stop()


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
