"""Print what `rlhf init` wrote and what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

_SAYS = {
    "conf/exp/first.yaml": "the experiment",
    "rewards.py": "the rewards",
    "test_rewards.py": "their tests: python -m pytest",
    "README.md": "what to type, in order",
    "AGENTS.md": "the same for programs and agents",
    ".gitignore": "keeps runs/ out of git",
    "data/completions.jsonl": "answers to try the rewards on",
}
_SAMPLE = "a sample to begin with"


def show_project(
    console: Console, folder: Path, names: Sequence[str], *, rename: Mapping[str, str], commands: Sequence[str]
) -> None:
    """Print the files of a new project, the column renames, and the first commands."""
    console.print(Text.assemble("a project in ", (str(folder), "bold")))
    table = Table.grid(padding=(0, 2))
    for name in names:
        table.add_row(Text(f"  {name}", style="cyan"), Text(_SAYS.get(name, _SAMPLE)))
    console.print(table)
    for role, column in rename.items():
        console.print(Text(f"the column {column!r} is read as {role}: data.rename in conf/exp/first.yaml"))
    console.print("next:")
    for command in commands:
        console.print(Text(f"  {command}"), soft_wrap=True)


def first_commands(folder: Path) -> list[str]:
    """Return the commands to type next, from the current folder."""
    inside = folder.resolve() == Path.cwd().resolve()
    return [*([] if inside else [f"cd {shlex.quote(str(folder))}"]), "rlhf check +exp=first", "rlhf train +exp=first"]
