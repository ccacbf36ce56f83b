"""Show sampling progress: a bar on a terminal, a line every quarter elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_LINES = 4


@dataclass
class GenerationBar:
    """A counter of completions that shows how many of `total` are done."""

    console: Console
    total: int
    progress: Progress | None = None
    done: int = 0

    def add(self, count: int) -> None:
        """Add newly finished completions."""
        before, self.done = self.done, self.done + count
        if self.progress is not None:
            self.progress.update(self.progress.task_ids[0], completed=self.done)
        elif self.done * _LINES // self.total > before * _LINES // self.total:
            self.console.print(f"[dim]{self.done} of {self.total} completions", highlight=False)

    def scoring(self) -> None:
        """Show that the rewards are being computed."""
        if self.progress is not None:
            self.progress.update(self.progress.task_ids[0], description="scoring")


@contextmanager
def generation_bar(console: Console, total: int) -> Iterator[GenerationBar]:
    """Return a context manager that shows a bar if the console is a terminal."""
    if not console.is_terminal:
        yield GenerationBar(console, total)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True) as progress:
        progress.add_task("completions", total=total)
        yield GenerationBar(console, total, progress)
