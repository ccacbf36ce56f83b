"""Ask at a terminal what a new project needs, and which column is which if that is unclear."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.console import Console
from rich.prompt import Prompt
from rich.table import Table
from rich.text import Text

from rlhf_cli.errors import UserError
from rlhf_cli.scaffold.project_choices import SAMPLE
from rlhf_cli.scaffold.starting_model import TINY
from rlhf_cli.scaffold.trainings import TRAININGS, training_named


def ask_training(console: Console) -> str:
    """Ask for the name of a trainer."""
    table = Table.grid(padding=(0, 2))
    for training in TRAININGS.values():
        table.add_row(f"  [bold]{training.name}", training.what)
    console.print("[bold]What trains?[/]")
    console.print(table)
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
