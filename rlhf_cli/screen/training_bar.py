"""Draws at the terminal while a run goes on: a spinner before the first step, a bar from then on."""

from __future__ import annotations

import sys

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


class Spinner:
    """Shows that something happens before the first step: importing, building, loading. Silent unless on a terminal.

    It is a context, and turns while that is open.
    """

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


class TrainingBar:
    """Draws a bar with the latest total reward (or loss); a line every tenth of the run where there is no terminal."""

    def __init__(self) -> None:
        # Bound to the terminal as it is now: stdout is redirected while TRL prints its tables.
        self._console = Console(file=sys.stdout)
        self._bar = Progress(
            TextColumn("[bold]training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[latest]}"),
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
        self._bar.stop()
