"""Write torch profiler traces of a few steps into the run folder, one file per step.

Traces are bounded in steps, in forward passes per generation (a thousand show no more than a few), and in bytes: after
a large trace no further step is traced.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.text import Text
from torch.profiler import ProfilerActivity, profile, record_function
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rlhf_cli.runs.heartbeat import GENERATION, LOGGING, Heartbeat
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.trainers.extensions import ExtendedTrainer

_STEPS, _WARM_UP = 3, 2
"""Number of traced steps, and of untraced steps before them, in which caches fill."""
_FORWARDS = 32
"""Number of traced forward passes per generation."""
_LARGE_BYTES = 64 * 2**20
"""Size limit of a compressed file: a browser needs ten times as much to show it."""


class TraceSteps(TrainerCallback):
    """A callback that traces steps of this rank, with a range for each phase of `heartbeat`.

    `every` is the number of steps between generations, 1 without generation; tracing starts at a generation. `say`
    prints which files were written.
    """

    def __init__(self, folder: RunFolder, heartbeat: Heartbeat, *, every: int, say: Callable[[Text], object]) -> None:
        self._folder, self._heartbeat, self._say = folder, heartbeat, say
        self._every = every
        self._first = 0
        self._files: list[Path] = []
        self._running: profile | None = None
        self._model: torch.nn.Module | None = None
        self._ranges: list[tuple[str, record_function]] = []
        self._generation: contextlib.ExitStack | None = None

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Choose the steps: after the warm-up, starting at a generation, within the training."""
        after = state.global_step + _WARM_UP
        self._first = -(-after // self._every) * self._every
        if self._first + 1 > state.max_steps:
            self._first = state.global_step

    def on_step_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module | None = None,
        **_: Any,
    ) -> None:
        """Start to trace a step."""
        if not self._first <= state.global_step < self._first + _STEPS or self._is_large:
            return
        self._model = model
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        self._running = profile(activities=activities)
        with self._quiet(), self._heartbeat.during(LOGGING):
            self._running.start()
        self._heartbeat.listeners.append(self._hear)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Write the trace of the step that has just ended."""
        self._end(state.global_step)
        if self._files and (state.global_step == self._first + _STEPS or self._is_large):
            self._tell()

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Print the files if training ended before all steps were traced."""
        if self._files:
            self._tell()

    @property
    def _is_large(self) -> bool:
        return bool(self._files) and self._files[-1].stat().st_size > _LARGE_BYTES

    def _end(self, step: int) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        self._heartbeat.listeners.remove(self._hear)
        self._hear(())
        file = self._folder.traces / f"step-{step:05d}.json.gz"
        file.parent.mkdir(exist_ok=True)
        with self._quiet(), self._heartbeat.during(LOGGING):
            running.stop()
            running.export_chrome_trace(str(file))
        self._files.append(file)

    def _tell(self) -> None:
        files, self._files, self._first = self._files, [], sys.maxsize
        size = sum(file.stat().st_size for file in files) / 2**20
        steps = f"{len(files)} step{'s' if len(files) > 1 else ''}"
        self._say(Text(f"traced {steps} ({size:.1f} MB); to look at one open https://ui.perfetto.dev and drop in"))
        self._say(Text(f"  {os.path.relpath(files[0])}", no_wrap=True, overflow="ignore"))

    def _hear(self, phases: tuple[str, ...]) -> None:
        """Close the ranges of phases that ended, innermost first, and open those of new phases."""
        same = 0
        while same < min(len(phases), len(self._ranges)) and self._ranges[same][0] == phases[same]:
            same += 1
        while len(self._ranges) > same:
            phase, ended = self._ranges.pop()
            if phase == GENERATION and self._generation is not None:
                self._generation.close()
                self._generation = None
            ended.__exit__(None, None, None)
        for phase in phases[same:]:
            begun = record_function(phase)
            begun.__enter__()
            self._ranges.append((phase, begun))
            if phase == GENERATION and self._running is not None and self._model is not None:
                self._generation = _limited(self._running, self._model, self._quiet)

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """Open a context in which messages of torch's C++ profiler go to log.txt instead of the terminal."""
        sys.stderr.flush()
        with self._folder.log.open("a", encoding="utf-8") as log:
            kept = os.dup(2)
            os.dup2(log.fileno(), 2)
            try:
                yield
            finally:
                os.dup2(kept, 2)
                os.close(kept)


def steps_a_generation(trainer: ExtendedTrainer) -> int:
    """Return the number of optimizer steps per rollout; 1 without rollouts."""
    passes = getattr(trainer.args, "steps_per_generation", 1) * getattr(trainer, "num_iterations", 1)
    return max(1, int(passes) // trainer.args.gradient_accumulation_steps)


def _limited(
    running: profile, model: torch.nn.Module, quiet: Callable[[], contextlib.AbstractContextManager[None]]
) -> contextlib.ExitStack:
    """Return an open context in which only the first forward passes of a model are traced."""
    num_forwards = 0
    activities = list(running.activities)

    def look(*_: object) -> None:
        nonlocal num_forwards
        num_forwards += 1
        if num_forwards == _FORWARDS + 1:
            with quiet():
                running.toggle_collection_dynamic(False, activities)

    def see_again() -> None:
        if num_forwards > _FORWARDS:
            with quiet():
                running.toggle_collection_dynamic(True, activities)

    stack = contextlib.ExitStack()
    stack.callback(see_again)
    stack.callback(model.register_forward_pre_hook(look).remove)
    return stack
