"""Prints commands that can be typed next, each with what it is for."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape


def show_commands(console: Console, commands: Mapping[str, str]) -> None:
    """Print a command a line. It is never broken, so that it can be copied; a comment without room is left out."""
    for command, why in commands.items():
        comment = f"  [dim]# {escape(why)}[/]" if len(command) + len(why) + 6 <= console.width else ""
        console.print(f"  [cyan]{escape(command)}[/]{comment}", soft_wrap=True, highlight=False)
