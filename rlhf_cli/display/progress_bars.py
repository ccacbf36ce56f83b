"""Draw progress while a run is prepared or samples."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from rlhf_cli.display.terminal import Screen


@contextmanager
def spinner(doing: str, *, shown: bool = True) -> Iterator[Callable[[str, int, int], None]]:
    """Spin inside the block, if stdout is a terminal, while modules are imported or models loaded.

    Yields a function that shows the current activity, its step and its steps.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    is_silent = not (shown and sys.stdout.isatty())
    with Progress(*columns, console=Screen(file=sys.stdout), transient=True, disable=is_silent) as progress:
        task = progress.add_task(doing, total=None)
        yield lambda what, step, steps: progress.update(task, description=f"{what} {step}/{steps}")


_LINES = 4
"""Without a terminal, print a line after each of so many parts of the completions."""


@contextmanager
def generation_bar(console: Console, total: int) -> Iterator[Callable[[int], None]]:
    """Show how many of `total` completions are done: a bar at a terminal, else a few lines.

    Yields a function that takes the number of newly finished completions.
    """
    columns = (TextColumn("completions"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task, done = progress.add_task("", total=total), 0

        def add(count: int) -> None:
            nonlocal done
            before, done = done, done + count
            progress.update(task, completed=done)
            if progress.disable and done * _LINES // total > before * _LINES // total:
                console.print(f"[dim]{done} of {total} completions", highlight=False)

        yield add
