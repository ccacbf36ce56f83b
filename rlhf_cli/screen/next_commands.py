"""Print commands to type next, each with its purpose."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape


def show_commands(console: Console, commands: Mapping[str, str]) -> None:
    """Print one command per line, never broken, so that it can be copied.

    A comment that does not fit is left out.
    """
    for command, why in commands.items():
        comment = f"  [dim]# {escape(why)}[/]" if len(command) + len(why) + 6 <= console.width else ""
        console.print(f"  [cyan]{escape(command)}[/]{comment}", soft_wrap=True, highlight=False)
