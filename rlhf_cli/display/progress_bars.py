"""Draw progress while a run trains or samples."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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

from rlhf_cli.display.terminal import Screen


class Spinner:
    """A spinner for the time before the first step: importing, building, loading. Silent unless stdout is a terminal.

    It spins while its context is open. `doing` says what is happening.
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
        """Show the current activity and its progress."""
        self._progress.update(self._task, description=f"{doing} {step}/{steps}")


class TrainingBar:
    """A bar with the latest total reward or loss. Without a terminal, it prints a line every tenth of the run."""

    def __init__(self) -> None:
        # Bind to the current stdout, because it is redirected while TRL prints its tables.
        self._console = Screen(file=sys.stdout)
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
        """Mark `step` as done."""
        self._bar.update(self._task, completed=step)

    def say_latest(self, latest: str) -> None:
        """Show the newest value beside the bar."""
        self._bar.update(self._task, latest=latest)

    def say_line(self, step: int, latest: str) -> None:
        """Without a terminal, print a line every tenth of the run."""
        if not self._console.is_terminal and step % self._every == 0:
            self._console.print(f"step {step}/{self._max_steps}  {latest}")

    def print(self, shown: RenderableType) -> None:
        """Print something above the bar."""
        self._console.print(shown)

    def stop(self) -> None:
        """Release the terminal, also after an error in training."""
        self._bar.stop()


_LINES = 4
"""Without a terminal, print a line after each of so many parts of the completions."""


@dataclass
class GenerationBar:
    """A counter of completions that shows how many of `total` are done: a bar at a terminal, else a few lines."""

    progress: Progress
    total: int
    done: int = 0

    def add(self, count: int) -> None:
        """Add newly finished completions."""
        before, self.done = self.done, self.done + count
        self.progress.update(self.progress.task_ids[0], completed=self.done)
        if self.progress.disable and self.done * _LINES // self.total > before * _LINES // self.total:
            self.progress.console.print(f"[dim]{self.done} of {self.total} completions", highlight=False)

    def scoring(self) -> None:
        """Show that the rewards are being computed."""
        self.progress.update(self.progress.task_ids[0], description="scoring")


@contextmanager
def generation_bar(console: Console, total: int) -> Iterator[GenerationBar]:
    """Return a context manager that shows the progress of `total` completions."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        progress.add_task("completions", total=total)
        yield GenerationBar(progress, total)
