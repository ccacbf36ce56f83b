"""Show how far a training is: a bar at a terminal, else a line from time to time.

An evaluation has a bar of its own, and the time left counts the evaluations that are still to come.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sized
from datetime import timedelta
from typing import Any, cast

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text
from transformers import IntervalStrategy, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rlhf_cli.display.terminal import Screen
from rlhf_cli.runs.heartbeat import EVALUATION, Heartbeat
from rlhf_cli.runs.metrics_file import Event, describe_held_out, evaluation_sets

_WIDE = 100  # columns of a terminal with room for the numbers of rounds and of steps
_QUIET_S = 60.0  # without a terminal, print a line at least this often while batches or steps end
_PASSES = ("sampled", "greedy")
"""What the two passes of a policy's evaluation are called, in their order (trainers/evaluation_mixin.py)."""


def evaluations_from(step: int, args: TrainingArguments, state: TrainerState) -> int:
    """Return how many evaluations are due after `step` or a later one; the last step always has one."""
    if args.eval_strategy == IntervalStrategy.STEPS:
        first, every = max(step, 1, math.ceil(args.eval_delay)), int(state.eval_steps)  # it may be 1.0
        return 0 if first > state.max_steps else -(-state.max_steps // every) - (first - 1) // every
    if args.eval_strategy == IntervalStrategy.EPOCH:
        return max(0, math.ceil(state.num_train_epochs) - max(math.floor(state.epoch or 0), math.ceil(args.eval_delay)))
    return 0


class TimeLeft:
    """An estimate of the seconds until a training ends, from its mean step and its last evaluation.

    The first step also warms up, so its time counts only until the second one has ended. `now` is a clock in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._num_steps, self._is_whole = 0, True
        self._step_s, self._evaluated_at = 0.0, -1
        self._evaluation_s: float | None = None
        self._ends_at: float | None = None
        self.start()

    def start(self) -> None:
        """Start the clock of the steps."""
        self._began, self._evaluating_s = self._now(), 0.0

    def evaluation_begins(self) -> None:
        """Stop the clock of the steps."""
        self._evaluation_began = self._now()

    def evaluation_ends(self) -> None:
        """Start the clock of the steps again. Several sets after one step are one evaluation."""
        took = self._now() - self._evaluation_began
        self._evaluating_s += took
        self._evaluation_s = took + (self._evaluation_s or 0.0) * (self._num_steps == self._evaluated_at)
        self._evaluated_at = self._num_steps

    def step_ends(self) -> None:
        """Count a step."""
        self._step_s = (self._now() - self._began - self._evaluating_s) / max(1, self._num_steps)
        self._num_steps += 1
        if self._num_steps == 1:
            self.start()

    def estimate(self, steps: int, evaluations: int) -> None:
        """Estimate from what is still to do."""
        self._is_whole = evaluations == 0 or self._evaluation_s is not None
        if self._num_steps:
            self._ends_at = self._now() + steps * self._step_s + evaluations * (self._evaluation_s or 0.0)

    def __str__(self) -> str:
        """Return `left 0:12:30`, or `left -:--:--` before the first step. `+ evaluations`: none was timed yet."""
        left = "-:--:--" if self._ends_at is None else timedelta(seconds=round(max(0.0, self._ends_at - self._now())))
        return f"left {left}{'' if self._is_whole else ' + evaluations'}"


class TrainingBar(TrainerCallback):
    """A callback that draws a bar with the newest total reward (or loss), and shows every evaluation above it.

    A trainer that takes several steps with one round of rollouts counts rounds. Without a terminal, a line is printed
    every tenth of the run, and after each minute. Use it in the main process only.
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
            TextColumn("{task.fields[left]}", style="progress.remaining"),
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
        self.left = TimeLeft(time.monotonic if heartbeat is None else heartbeat.working_s)
        if heartbeat is not None:
            heartbeat.listeners.append(self._hear)

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._generates = hasattr(args, "reward_weights")
        micro_batches, iterations = getattr(args, "steps_per_generation", None), getattr(args, "num_iterations", 1)
        self._per_round = (micro_batches or 0) * iterations / args.gradient_accumulation_steps
        fields: dict[str, Any] = {"total": state.max_steps, "completed": state.global_step, "latest": ""}
        self._task = self._bar.add_task("training", count=self._count(state), left=self.left, **fields)
        self._bar.start()
        self.left.start()

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.left.step_ends()
        self.left.estimate(state.max_steps - state.global_step, evaluations_from(state.global_step, args, state))
        self._bar.update(self._task, completed=state.global_step, count=self._count(state))

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Event | None = None, **_: Any) -> None:
        """Show the newest reward beside the bar or on its own line; of a trainer without rewards, the loss."""
        logs = logs or {}
        value = logs.get("reward" if self._generates else "loss")
        if isinstance(value, float) and not math.isnan(value):
            self._latest = f"{'reward' if self._generates else 'loss'} {value:.3f}"
        self._bar.update(self._task, latest=self._latest)
        if any(name.startswith(("eval_", "train_runtime")) for name in logs):
            return
        is_due = state.global_step % max(1, state.max_steps // 10) == 0
        self._say(f"{self._count(state, 'step ')}  {self._latest}", is_due=is_due)

    def _count(self, state: TrainerState, unit: str = "") -> str:
        steps = f"{unit}{state.global_step}/{state.max_steps}"
        if self._per_round <= 1:
            return steps
        rounds = math.ceil(state.max_steps / self._per_round)
        current = f"round {min(rounds, math.floor(state.global_step / self._per_round) + 1)}/{rounds}"
        is_narrow = self._console.is_terminal and self._console.width < _WIDE
        return current if is_narrow else f"{current}, step {state.global_step}/{state.max_steps}"

    def _hear(self, phases: tuple[str, ...]) -> None:
        """Draw the bar of an evaluation when it begins, before its first batch has ended, and remove it at its end."""
        is_evaluating = EVALUATION in phases
        if is_evaluating and self._evaluation is None:
            self._loader, self._num_passes = None, 0
            self._evaluation = self._bar.add_task("evaluating", total=None, count="", latest="", left="")
            self.left.evaluation_begins()
        elif not is_evaluating and self._evaluation is not None:
            self._bar.remove_task(self._evaluation)
            self._evaluation = None
            self.left.evaluation_ends()

    def on_prediction_step(self, args: Any, state: Any, control: Any, eval_dataloader: Any = None, **_: Any) -> None:
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
        self._say(f"{', '.join(filter(None, ('evaluating', doing)))} {done} of {rows}", is_due=False)

    def on_evaluate(self, args: Any, state: TrainerState, control: Any, metrics: Event | None = None, **_: Any) -> None:
        self.left.estimate(state.max_steps - state.global_step, evaluations_from(state.global_step + 1, args, state))
        for name, prefix in evaluation_sets(metrics or {}).items():
            if summary := describe_held_out(dict(metrics or {}), prefix):
                self.print(Text(f"step {state.global_step}, held out{f' {name}' if name else ''}: {summary}"))

    def _say(self, text: str, *, is_due: bool) -> None:
        """Without a bar, print a line with the time so far and the time left, if it is due or the last is long ago."""
        is_quiet = time.monotonic() - self._said_at >= _QUIET_S
        if not self._console.is_terminal and (is_due or is_quiet):
            self._said_at = time.monotonic()
            self._console.print(f"{text}  {timedelta(seconds=round(self._said_at - self._began))}, {self.left}")

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.stop()

    def print(self, shown: RenderableType) -> None:
        """Print something above the bar."""
        self._console.print(shown)

    def stop(self) -> None:
        """Release the terminal, also after an error in training."""
        self._bar.stop()
