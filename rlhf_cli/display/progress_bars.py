"""Draw progress while a run trains or samples."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, RenderableType
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

from rlhf_cli.display.terminal import Screen
from rlhf_cli.runs.running_reward import Running, running_rewards

_WORTH_NAMING_S = 2.0


def waited_for(running: Sequence[Running], now: float) -> str:
    """Return the longest-running reward, e.g. `reward judge, 14 s`, or '' if none has run for two seconds.

    `now` is on the clock of `Running`. The rank is named unless it is 0.
    """
    first = min(running, key=lambda one: one.began_at, default=None)
    if first is None or now - first.began_at < _WORTH_NAMING_S:
        return ""
    on = f" on rank {first.rank}" if first.rank else ""
    return f"reward {first.name}{on}, {now - first.began_at:.0f} s"


class _WaitedFor(ProgressColumn):
    """A progress column that names the reward being waited for."""

    max_refresh = 0.5

    def __init__(self, run: Path | None) -> None:
        super().__init__()
        self._run = run

    def render(self, task: Task) -> Text:
        """Return the text. Rich calls this from its own thread."""
        running = running_rewards(self._run) if self._run is not None else []
        return Text(waited_for(running, time.monotonic()), style="yellow")


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
    """A bar with the latest total reward (or loss). Without a terminal, prints a line every tenth of the run instead.

    The bar names a slow reward of `run` while it is being waited for.
    """

    def __init__(self, run: Path | None = None) -> None:
        # Bind to the current stdout, because it is redirected while TRL prints its tables.
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
