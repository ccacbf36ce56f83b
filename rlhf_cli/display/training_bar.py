"""Show how far a training is: a bar at a terminal, else a line from time to time.

An evaluation has a bar of its own, and the time left counts the evaluations that are still to come.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sized
from datetime import timedelta
from typing import Any, cast

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text
from transformers import IntervalStrategy, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rlhf_cli.display.terminal import Screen
from rlhf_cli.runs.heartbeat import EVALUATION, Heartbeat
from rlhf_cli.runs.metrics_file import describe_held_out, evaluation_sets

_QUIET_S = 60.0
"""Without a terminal, print a line at least this often while batches or steps end."""
_PASSES = ("sampled", "greedy")
"""What the two passes of a policy's evaluation are called, in their order (trainers/evaluation_mixin.py)."""


def evaluations_after(args: TrainingArguments, state: TrainerState, *, is_evaluated: bool = True) -> int:
    """Return how many evaluations are to come; `is_evaluated` says whether that of the current step is done."""
    if args.eval_strategy == IntervalStrategy.STEPS:
        first, every = max(state.global_step + is_evaluated, math.ceil(args.eval_delay)), int(state.eval_steps)
        due = {*range(-(-first // every) * every, state.max_steps + 1, every), state.max_steps}
        return len([step for step in due if step >= first])
    if args.eval_strategy == IntervalStrategy.EPOCH:
        return max(0, math.ceil(state.num_train_epochs) - max(math.floor(state.epoch or 0), math.ceil(args.eval_delay)))
    return 0


class TimeLeft:
    """An estimate of the seconds until the training ends, from the mean step and the last evaluation of this attempt.

    The time of an evaluation is no part of a step. The first step also warms up, so its time counts only until the
    second one has ended. `now` is a clock in seconds; that of a heartbeat stands still while the process is stopped.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._began = now()
        self._evaluation_began = 0.0
        self._num_steps, self._evaluated_at = 0, -1
        self._warm_up_s = self._evaluating_s = 0.0
        self._evaluation_s: float | None = None
        self._num_unknown = 0
        self._left: tuple[float, float] | None = None

    def training_begins(self) -> None:
        """Start the clock of the steps."""
        self._began, self._evaluating_s = self._now(), 0.0

    def evaluation_begins(self) -> None:
        """Stop the clock of the steps."""
        self._evaluation_began = self._now()

    def evaluation_ends(self) -> None:
        """Start the clock of the steps again."""
        took = self._now() - self._evaluation_began
        # Several sets after one step are one evaluation.
        self._evaluation_s = took + ((self._evaluation_s or 0.0) if self._num_steps == self._evaluated_at else 0.0)
        self._evaluated_at = self._num_steps
        self._evaluating_s += took

    def step_ends(self) -> None:
        """Count a step."""
        self._num_steps += 1
        if self._num_steps == 1:
            self._warm_up_s = self._now() - self._began - self._evaluating_s
            self.training_begins()

    def estimate(self, steps_left: int, evaluations_left: int) -> None:
        """Estimate from what is still to do."""
        if not self._num_steps:
            return
        measured = self._num_steps - 1
        step_s = (self._now() - self._began - self._evaluating_s) / measured if measured else self._warm_up_s
        self._num_unknown = evaluations_left if self._evaluation_s is None else 0
        self._left = (self._now(), steps_left * step_s + evaluations_left * (self._evaluation_s or 0.0))

    def __str__(self) -> str:
        """Return `0:12:30`, or `-:--:--` before the first step. `+ 2 evaluations`: none was timed yet."""
        if self._left is None:
            return "-:--:--"
        at, left_s = self._left
        more = f" + {self._num_unknown} evaluation{'s' * (self._num_unknown > 1)}" if self._num_unknown else ""
        return _clock(max(0.0, left_s - (self._now() - at))) + more


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _steps(state: TrainerState) -> str:
    return f"{state.global_step}/{state.max_steps}"


class TrainingBar(TrainerCallback):
    """A callback that draws a bar with the newest total reward (or loss), and shows every evaluation above it.

    Without a terminal, a line is printed every tenth of the run, and after each minute. Use it in the main process only.
    """

    def __init__(self, heartbeat: Heartbeat | None = None, left: TimeLeft | None = None) -> None:
        # Bind to the current stdout, because it is redirected while TRL prints its tables.
        self._console = Screen(file=sys.stdout)
        self.left = left or TimeLeft(heartbeat.working_s if heartbeat is not None else time.monotonic)
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[count]}"),
            TextColumn("{task.fields[latest]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[lead]}{task.fields[left]}", style="progress.remaining"),
            console=self._console,
            redirect_stdout=False,
            redirect_stderr=False,
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
        fields: dict[str, Any] = {"count": _steps(state), "latest": "", "lead": "left ", "left": self.left}
        self._task = self._bar.add_task("training", total=state.max_steps, completed=state.global_step, **fields)
        self._bar.start()
        self.left.training_begins()

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.left.step_ends()
        evaluations = evaluations_after(args, state, is_evaluated=False)
        self.left.estimate(state.max_steps - state.global_step, evaluations)
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
            self.left.evaluation_begins()
            self._loader, self._num_passes = None, 0
            fields: dict[str, Any] = dict.fromkeys(("count", "latest", "lead", "left"), "")
            self._evaluation = self._bar.add_task("evaluating", total=None, **fields)
        elif not is_evaluating and self._evaluation is not None:
            self._bar.remove_task(self._evaluation)
            self._evaluation = None
            self.left.evaluation_ends()

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
        self.left.estimate(state.max_steps - state.global_step, evaluations_after(args, state))
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
            self._console.print(f"{text}  {_clock(self._said_at - self._began)}, left {self.left}")

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.stop()

    def print(self, shown: RenderableType) -> None:
        """Print something above the bar."""
        self._console.print(shown)

    def stop(self) -> None:
        """Release the terminal, also after an error in training."""
        self._bar.stop()
