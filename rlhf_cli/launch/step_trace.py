"""Write torch profiler traces of a few steps into the run folder, one file per step."""

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
from transformers import TrainerCallback, TrainerControl, TrainerState

from rlhf_cli.runs.heartbeat import LOGGING, Heartbeat
from rlhf_cli.runs.run_folder import RunFolder

_FIRST, _LAST = 3, 5
"""The first and last traced step of a training; caches fill in the steps before."""


class TraceSteps(TrainerCallback):
    """A callback that traces steps of this rank, with a range for each phase of `heartbeat`.

    `say` prints which files were written.
    """

    def __init__(self, folder: RunFolder, heartbeat: Heartbeat, *, say: Callable[[Text], object]) -> None:
        self._folder, self._heartbeat, self._say = folder, heartbeat, say
        self._files: list[Path] = []
        self._running: profile | None = None
        self._ranges: list[tuple[str, record_function]] = []
        self._num_steps = 0

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Start to trace a step."""
        self._num_steps += 1
        if not _FIRST <= self._num_steps <= _LAST:
            return
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        self._running = profile(activities=activities)
        with self._quiet(), self._heartbeat.during(LOGGING):
            self._running.start()
        self._heartbeat.listeners.append(self._hear)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Write the trace of the step that has just ended."""
        if self._running is None:
            return
        running, self._running = self._running, None
        self._heartbeat.listeners.remove(self._hear)
        self._hear(())
        self._files.append(self._folder.traces / f"step-{state.global_step:05d}.json.gz")
        self._folder.traces.mkdir(exist_ok=True)
        with self._quiet(), self._heartbeat.during(LOGGING):
            running.stop()
            running.export_chrome_trace(str(self._files[-1]))

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Print the files."""
        if self._files:
            size = sum(file.stat().st_size for file in self._files) / 2**20
            what = f"traced {len(self._files)} steps ({size:.1f} MB)"
            self._say(Text(f"{what}; to look at one open https://ui.perfetto.dev and drop in"))
            self._say(Text(f"  {os.path.relpath(self._files[0])}", no_wrap=True, overflow="ignore"))

    def _hear(self, phases: tuple[str, ...]) -> None:
        """Close the ranges of phases that ended, innermost first, and open those of new phases."""
        same = 0
        while same < min(len(phases), len(self._ranges)) and self._ranges[same][0] == phases[same]:
            same += 1
        while len(self._ranges) > same:
            self._ranges.pop()[1].__exit__(None, None, None)
        for phase in phases[same:]:
            self._ranges.append((phase, record_function(phase)))
            self._ranges[-1][1].__enter__()

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
