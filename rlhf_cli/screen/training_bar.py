"""Draws at the terminal while a run goes on: a spinner before the first step, a bar from then on."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from rlhf_cli.runs.running_reward import Running, running_rewards
from rlhf_cli.screen.screen_width import Screen

_WORTH_NAMING_S = 2.0
_WORTH_A_LINE_S = 30.0
"""After so long without a terminal, and after each time twice as long, a line says what is waited for."""


def waited_for(running: Sequence[Running], now: float, *, least_s: float = _WORTH_NAMING_S) -> str:
    """Return which reward has run for the longest, as in `reward judge, 14 s`; '' where none has for `least_s` seconds.

    `now` is on the clock of `Running`. The rank is named where it is not the one that draws.
    """
    first = min(running, key=lambda one: one.began_at, default=None)
    if first is None or now - first.began_at < least_s:
        return ""
    on = f" on rank {first.rank}" if first.rank else ""
    return f"reward {first.name}{on}, {now - first.began_at:.0f} s"


class _WaitedFor(ProgressColumn):
    """Names the reward that is waited for, as long as one is."""

    max_refresh = 0.5

    def __init__(self, run: Path | None) -> None:
        super().__init__()
        self._run = run

    def render(self, task: Task) -> Text:
        """Return the words; rich asks for them from a thread of its own."""
        running = running_rewards(self._run) if self._run is not None else []
        return Text(waited_for(running, time.monotonic()), style="yellow")


class Spinner:
    """Shows that something happens before the first step: importing, building, loading. Silent unless on a terminal.

    It is a context, and turns while that is open; `doing` says what it waits for.
    """

    def __init__(self, *, shown: bool, doing: str = "loading data and models") -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=Screen(file=sys.stdout),
            transient=True,
            disable=not (shown and sys.stdout.isatty()),
        )
        self._task = self._progress.add_task(doing, total=None)

    def __enter__(self) -> Spinner:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, doing: str, step: int, steps: int) -> None:
        """Say what is being done and how far it is."""
        self._progress.update(self._task, description=f"{doing} {step}/{steps}")


class TrainingBar:
    """Draws a bar with the latest total reward (or loss); a line every tenth of the run where there is no terminal.

    Either names the reward of `run` that is waited for, where one takes long.
    """

    def __init__(self, run: Path | None = None) -> None:
        self._run = run
        self._is_over = threading.Event()
        # Bound to the terminal as it is now: stdout is redirected while TRL prints its tables.
        self._console = Screen(file=sys.stdout)
        self._bar = Progress(
            TextColumn("[bold]training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[latest]}"),
            _WaitedFor(run),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            redirect_stdout=False,
            redirect_stderr=False,
            disable=not self._console.is_terminal,
        )

    def start(self, step: int, max_steps: int) -> None:
        """Show the bar at `step` of `max_steps`."""
        self._every = max(1, max_steps // 10)
        self._max_steps = max_steps
        self._task = self._bar.add_task("training", total=max_steps, completed=step, latest="")
        self._bar.start()
        if self._run is not None and not self._console.is_terminal:
            threading.Thread(target=self._say_waited_for, args=[self._run], daemon=True, name="progress lines").start()

    def move_to(self, step: int) -> None:
        """Say that `step` is done."""
        self._bar.update(self._task, completed=step)

    def say_latest(self, latest: str) -> None:
        """Show the newest figure beside the bar."""
        self._bar.update(self._task, latest=latest)

    def say_line(self, step: int, latest: str) -> None:
        """Print a line instead of the bar, every tenth of the run, where there is no terminal."""
        if not self._console.is_terminal and step % self._every == 0:
            self._console.print(f"step {step}/{self._max_steps}  {latest}")

    def print(self, shown: RenderableType) -> None:
        """Print something that is to stand above the bar."""
        self._console.print(shown)

    def stop(self) -> None:
        """Give the terminal back; also when training ended by an error."""
        self._is_over.set()
        self._bar.stop()

    def _say_waited_for(self, run: Path) -> None:
        """Print a line, and another after twice as long, while a reward runs."""
        least_s = _WORTH_A_LINE_S
        while not self._is_over.wait(min(1.0, _WORTH_A_LINE_S / 2)):
            running = running_rewards(run)
            if said := waited_for(running, time.monotonic(), least_s=least_s):
                self._console.print(f"waiting for {said}", highlight=False)
                least_s *= 2
            elif not waited_for(running, time.monotonic(), least_s=_WORTH_A_LINE_S):
                least_s = _WORTH_A_LINE_S
