"""Shows how far sampling has come: a bar on a terminal, a line every quarter elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_LINES = 4


@dataclass
class GenerationBar:
    """Counts completions of `total` and says how many there are."""

    console: Console
    total: int
    progress: Progress | None = None
    done: int = 0

    def add(self, count: int) -> None:
        """Count completions that are new."""
        before, self.done = self.done, self.done + count
        if self.progress is not None:
            self.progress.update(self.progress.task_ids[0], completed=self.done)
        elif self.done * _LINES // self.total > before * _LINES // self.total:
            self.console.print(f"[dim]{self.done} of {self.total} completions", highlight=False)

    def scoring(self) -> None:
        """Say that the rewards are asked now."""
        if self.progress is not None:
            self.progress.update(self.progress.task_ids[0], description="scoring")


@contextmanager
def generation_bar(console: Console, total: int) -> Iterator[GenerationBar]:
    """Open a context in which a bar is drawn where the console is a terminal."""
    if not console.is_terminal:
        yield GenerationBar(console, total)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True) as progress:
        progress.add_task("completions", total=total)
        yield GenerationBar(console, total, progress)
