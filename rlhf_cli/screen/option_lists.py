"""Print the options of each group with their captions, or one option with its file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from rlhf_cli.config.conf_folders import caption, user_dir

_SHOWN_LINES = 200


def show_groups(console: Console, groups: Mapping[str, Mapping[str, Path]], *, more: str) -> None:
    """Print every group with its options, with the captions of a group aligned in one column.

    At a terminal, print the hint `more` at the end.
    """
    for number, (group, options) in enumerate(groups.items()):
        if number:
            console.print()
        console.print(Text(group, style="bold cyan"))
        yours = {option: " (yours)" if _is_mine(file) else "" for option, file in options.items()}
        show_pairs(console, [(f"  {option}", caption(file) + yours[option]) for option, file in options.items()])
    if console.is_terminal:
        console.print()
        console.print(Text(more, style="dim"))


def show_pairs(console: Console, pairs: Sequence[tuple[str, str]], *, style: str = "bold") -> None:
    """Print names and their descriptions in two columns. A long text wraps within its column."""
    width = max((len(name) for name, _ in pairs), default=0)
    if not console.is_terminal:  # no trailing spaces and no wrapping
        for name, text in pairs:
            console.print(Text(f"{name:<{width}}  {text}".rstrip()), soft_wrap=True)
        return
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style=style, no_wrap=True, width=width)
    table.add_column(overflow="fold")
    for name, text in pairs:
        table.add_row(Text(name), Text.from_markup(_marked(text)))
    console.print(table)


def show_option(console: Console, group: str, option: str, file: Path) -> None:
    """Print an option's file, its comments as text and the rest as YAML, and its path."""
    text = file.read_text(encoding="utf-8")
    head, body = _head(text)
    console.print(Text.assemble((f"{group} ", "cyan"), (option, "bold")))
    console.print(Text("\n".join(head)), soft_wrap=not console.is_terminal)
    console.print()
    show_yaml(console, body)
    console.print()
    console.print(Text.assemble(("file  ", "dim"), shown_path(file)), soft_wrap=True)


def show_yaml(console: Console, text: str) -> None:
    """Print YAML, coloured at a terminal. Lines are never cut, so they can be copied."""
    if console.is_terminal and not console.no_color:
        lines = Syntax(text.rstrip(), "yaml", background_color="default", theme="ansi_dark").highlight(text.rstrip())
        console.print(lines, soft_wrap=True, end="")
        return
    console.print(Text(text.rstrip()), soft_wrap=True)


def shown_path(file: Path, line: int | None = None) -> str:
    """Return a path relative to the current folder if that is short, with its line number."""
    relative = os.path.relpath(file)
    shown = str(file) if relative.startswith("../..") else relative
    return f"{shown}:{line}" if line else shown


def _head(text: str) -> tuple[list[str], str]:
    """Return the comment lines at the head of a file without `#`, and the rest of the file."""
    lines = text.splitlines()
    head = []
    while lines and lines[0].startswith("#"):
        line = lines.pop(0)
        if not line.startswith("# @package"):
            head.append(line.removeprefix("#").removeprefix(" "))
    return head, "\n".join(lines)


def _is_mine(file: Path) -> bool:
    mine = user_dir()
    return mine is not None and file.is_relative_to(mine)


def _marked(text: str) -> str:
    escaped = text.replace("[", r"\[")
    return escaped.removesuffix(" (yours)") + (" [green](yours)[/]" if escaped.endswith(" (yours)") else "")
