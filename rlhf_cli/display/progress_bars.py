"""Draw progress while a run is prepared or samples."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from rlhf_cli.display.terminal import Screen

_QUIET_S = 30.0


@contextmanager
def spinner(doing: str, *, shown: bool = True) -> Iterator[Callable[[str], None]]:
    """Show inside the block what is imported or loaded: a spinner at a terminal, else a line every half minute.

    Yields a function that shows another activity instead.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    ended, is_terminal = threading.Event(), sys.stdout.isatty()
    with Progress(
        *columns, console=Screen(file=sys.stdout), transient=True, disable=not (shown and is_terminal)
    ) as progress:
        task = progress.add_task(doing, total=None)

        def print_lines() -> None:
            while not ended.wait(_QUIET_S):
                print(f"{progress.tasks[0].description} ...", flush=True)

        if shown and not is_terminal:
            threading.Thread(target=print_lines, daemon=True).start()
        try:
            yield lambda doing: progress.update(task, description=doing)
        finally:
            ended.set()


_LINES = 4
"""Without a terminal, print a line after each quarter of the completions."""


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
