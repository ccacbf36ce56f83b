"""Print what `rlhf doctor`, `init` and `export` have to say."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.prompt import Prompt
from rich.text import Text

from rlhf_cli.display.tables import Cell, facts_grid, plain_table
from rlhf_cli.errors import UserError
from rlhf_cli.project.doctor.machine import Condition, State, can_train
from rlhf_cli.project.export.exported_folder import ExportedModel
from rlhf_cli.project.scaffold.own_rows import TRAININGS, training_named
from rlhf_cli.project.scaffold.project_choices import SAMPLE, TINY
from rlhf_cli.runs.disk_space import size

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
        console.print("[green]ok[/], rlhf can train here; what is missing is needed for what stands beside it")
    else:
        console.print(Text.assemble(("rlhf cannot train here", "bold red"), f": {', '.join(wrong)}"))


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
    console.print(facts_grid(((f"  {name}", _SAYS.get(name, _SAMPLE)) for name in names), style="cyan"))
    for role, column in rename.items():
        console.print(Text(f"the column {column!r} is read as {role}: data.rename in conf/exp/first.yaml"))
    console.print("next:")
    for command in commands:
        console.print(Text(f"  {command}"), soft_wrap=True)


def first_commands(folder: Path) -> list[str]:
    """Return the commands to type next, from the current folder."""
    inside = folder.resolve() == Path.cwd().resolve()
    return [*([] if inside else [f"cd {shlex.quote(str(folder))}"]), "rlhf check +exp=first", "rlhf train +exp=first"]


def ask_training(console: Console) -> str:
    """Ask for the name of a trainer."""
    console.print("[bold]What trains?[/]")
    console.print(facts_grid((f"  {training.name}", training.what) for training in TRAININGS.values()))
    return _ask_until(console, "trainer", "grpo", lambda word: training_named(word, is_answer=True))


def ask_model(console: Console, refuse: Callable[[str], object]) -> str:
    """Ask for the model to start from. Ask again while `refuse` raises UserError."""
    console.print(
        "\n[bold]Which model?[/] tiny: 0.15 M parameters, here already, trains on a CPU. Or a folder, or a hub id",
        highlight=False,
    )
    return _ask_until(console, "model", TINY, refuse)


def ask_data(console: Console, refuse: Callable[[str], object]) -> str:
    """Ask for the data. Ask again while `refuse` raises UserError."""
    console.print(
        "\n[bold]Which data?[/] sample: sums, which the tiny model can learn. Or a file: JSONL, JSON, CSV, Parquet",
        highlight=False,
    )
    return _ask_until(console, "data", SAMPLE, refuse)


def ask_columns(console: Console, missing: Iterable[str], columns: Sequence[str]) -> dict[str, str]:
    """Ask for the column of each missing role. Return role -> column."""
    named = {}
    for role in missing:
        console.print(f"\n[bold]Which column is the {role}?[/] {', '.join(columns)}", highlight=False)
        named[role] = Prompt.ask("column", console=console, choices=list(columns), show_choices=False)
    return named


def _ask_until(console: Console, prompt: str, default: str, refuse: Callable[[str], object]) -> str:
    while True:
        typed = Prompt.ask(prompt, console=console, default=default).strip()
        try:
            refuse(typed)
        except UserError as error:
            console.print(Text.assemble(("error:", "red"), f" {error}"), soft_wrap=True)
        else:
            return typed


def show_export(
    console: Console, run: str, given: ExportedModel, pushed_to: str | None, *, flags: Sequence[str] = ()
) -> None:
    """Print where the exported model is, what it is, and the command that uploads it.

    `flags` are the flags that chose the weights and the folder.
    """
    place = os.path.relpath(given.folder) if given.folder.is_relative_to(Path.cwd()) else str(given.folder)
    how = "its adapter merged into its base" if given.merged else "its weights as they were saved"
    console.print(Text.assemble((place, "bold"), f": the {given.kind} of step {given.step}, {how}"))
    console.print(
        Text(f"  {len(given.files)} files, {size(given.bytes)}; README.md is its card: read it before others do")
    )
    for note in given.notes:
        console.print(Text(f"  {note}", "yellow"))
    if pushed_to is not None:
        console.print(Text(f"  pushed to {pushed_to}"))
    else:
        command = f"rlhf export {shlex.join([run, *flags])} --push OWNER/NAME"
        console.print(Text(f"  {command}  # uploads it, with the card as you leave it"), soft_wrap=True)
