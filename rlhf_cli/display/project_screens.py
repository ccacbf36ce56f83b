"""Print the results of `rlhf doctor`, `init` and `export`."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from rlhf_cli.display.tables import Cell, facts_grid, plain_table
from rlhf_cli.project.doctor import Condition, State, can_train
from rlhf_cli.project.export.exported_folder import ExportedModel

_STYLE = {State.OK: "green", State.WARN: "yellow", State.MISSING: "dim", State.UNFIT: "red"}
_NEEDED = "bold red"


def show_conditions(console: Console, conditions: Sequence[Condition]) -> None:
    """Print the conditions by area, and whether training is possible."""
    rows: list[list[Cell]] = []
    for area, group in itertools.groupby(conditions, key=lambda condition: condition.area):
        rows.append([(area, "bold"), "", ""])
        for condition in group:
            style = _NEEDED if condition.prevents_training else _STYLE[condition.state]
            found = Text(condition.found)
            if condition.fix is not None:
                found.append("\n" if condition.found else "").append(condition.fix, "cyan")
            rows.append([f"  {condition.name}", (condition.state, style), found])
    table = plain_table(["", "", ""], rows=rows)
    console.print(table)
    wrong = [condition.name for condition in conditions if condition.prevents_training]
    if can_train(conditions):
        console.print(
            "[green]ok[/], rlhf can train here; missing packages are needed only for the feature in their row"
        )
    else:
        console.print(Text.assemble(("rlhf cannot train here", "bold red"), f": {', '.join(wrong)}"))


_SAYS = {
    ".yaml": "the experiment",
    "test_rewards.py": "their tests: python -m pytest",
    ".py": "the rewards",
    "README.md": "what to type, in order",
    "AGENTS.md": "the same for programs and agents",
    ".gitignore": "keeps runs/ out of git",
    "data/completions.jsonl": "answers to try the rewards on",
}
_SAMPLE = "a sample to start with"


def show_project(
    console: Console, folder: Path, names: Sequence[str], *, rename: Mapping[str, str], commands: Sequence[str]
) -> None:
    """Print the files of a new project, the column renames, and the first commands."""
    console.print(Text.assemble("a project in ", (str(folder), "bold")))
    console.print(
        facts_grid(
            ((f"  {name}", _SAYS.get(name, _SAYS.get(Path(name).suffix, _SAMPLE))) for name in names), style="cyan"
        )
    )
    for role, column in rename.items():
        console.print(Text(f"data.rename in the experiment reads the column {column!r} as {role}"))
    console.print("next:")
    for command in commands:
        console.print(Text(f"  {command}"), soft_wrap=True)


def show_export(console: Console, given: ExportedModel) -> None:
    """Print where the exported model is, what it is, and the command that uploads it."""
    place = os.path.relpath(given.folder) if given.folder.is_relative_to(Path.cwd()) else str(given.folder)
    how = "adapter merged into its base" if given.merged else "weights as saved"
    console.print(Text.assemble((place, "bold"), f": the {given.kind} of step {given.step}, {how}"))
    console.print(Text(f"  {len(given.files)} files; README.md is its card: read it before you publish"))
    for note in given.notes:
        console.print(Text(f"  {note}", "yellow"))
    command = f"hf upload OWNER/NAME {shlex.quote(place)} --private"
    console.print(Text(f"  {command}  # publishes it with this card"), soft_wrap=True)
