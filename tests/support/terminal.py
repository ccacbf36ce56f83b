"""A terminal of a given width that only remembers: what a person would read on it."""

from __future__ import annotations

import io
from collections.abc import Callable

from rich.console import Console, RenderableType

WIDTH = 80


def printed(print_on: Callable[[Console], object], width: int = WIDTH) -> list[str]:
    """Return the lines that a function prints on a console of this width, without spaces at their ends."""
    screen = io.StringIO()
    print_on(Console(file=screen, width=width))
    lines = [line.rstrip() for line in screen.getvalue().splitlines()]
    assert max(map(len, lines), default=0) <= width
    return lines


def drawn(shown: RenderableType, width: int = WIDTH) -> list[str]:
    """Return the lines of something that rich can draw."""
    return printed(lambda console: console.print(shown), width)
