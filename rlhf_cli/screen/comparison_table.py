"""Prints runs as the rows of a table: each reward at start and end, and what differs in the configurations."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlhf_cli.errors import RunError
from rlhf_cli.runs.metrics_file import TOTAL
from rlhf_cli.runs.run_summary import RunSummary, differences, starting_models

_STATE_STYLE = {"finished": "green", "failed": "red", "killed": "red", "preempted": "yellow"}
_HASH = 12
"""So many digits of a hash tell two apart."""
_FEW = 3
"""So many differing settings fit into the table as columns; more are listed under it."""


def show_comparison(console: Console, runs: list[RunSummary]) -> None:
    """Print one row a run, `start→end`: raw (unweighted) rewards and their total, else loss and accuracy."""
    keys = differences(runs)
    as_columns = keys if len(keys) <= _FEW else []
    names: dict[str, None] = {}
    for run in runs:
        names.update(dict.fromkeys(run.rewards | run.measures))
    parent = _common_parent(runs)
    table = Table(header_style="bold", padding=(0, 1, 0, 0), box=None)
    table.add_column("#", justify="right", style="dim")
    table.add_column("run", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for key in as_columns:
        table.add_column(_short(key, keys), justify="right", overflow="fold")
    for name in names:
        table.add_column("total" if name == TOTAL else name, justify="right", no_wrap=True)
    for number, run in enumerate(runs):
        state = Text(run.status.state, _STATE_STYLE.get(run.status.state, ""))
        cells: list[str | Text] = [str(number), os.path.relpath(run.folder.path, parent), state]
        cells += [_value(run.settings.get(key)) for key in as_columns]
        for name in names:
            span = (run.rewards | run.measures).get(name)
            cells.append(f"{span[0]:.3f}→{span[1]:.3f}" if span else "-")
        table.add_row(*cells)
    console.print(f"[dim]{os.path.relpath(parent)}/")
    console.print(table)
    if keys and not as_columns:
        _show_differences(console, runs, keys)
    if not keys and len(runs) > 1:
        console.print("[dim]the configurations do not differ")
    if len(by_model := starting_models(runs)) > 1:
        named = (f"{model[:_HASH]} ({' '.join(f'#{place}' for place in of)})" for model, of in by_model.items())
        is_asked_for = any(key.startswith("model.") for key in keys)
        say = "[dim]they began" if is_asked_for else "[yellow]the same model by name, but they began"
        console.print(f"{say} with different weights: {', '.join(named)}")
    legend = "start→end: mean over the first and last tenth of the log events"
    legend += (
        "; rewards are raw, the total is gated, weighted and aggregated" if any(run.rewards for run in runs) else ""
    )
    legend += "; held out: the first and the last evaluation" if any(", held out" in name for name in names) else ""
    console.print(f"[dim]{legend}")


def _show_differences(console: Console, runs: list[RunSummary], keys: list[str]) -> None:
    """One line a setting: each value with the numbers of the runs that have it."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold")
    grid.add_column()
    for key in keys:
        by_value: dict[str, list[str]] = {}
        for number, run in enumerate(runs):
            by_value.setdefault(_value(run.settings.get(key)), []).append(f"#{number}")
        common = max(by_value, key=lambda value: len(by_value[value]))
        shown = [
            f"{value} ({'the others' if value == common and len(names) > 1 else ' '.join(names)})"
            for value, names in by_value.items()
        ]
        grid.add_row(key, Text("   ".join(shown)))
    console.print()
    console.print("[dim]what differs")
    console.print(grid)


def _common_parent(runs: list[RunSummary]) -> str:
    return os.path.commonpath([str(run.folder.path.parent) for run in runs])


def _value(value: object) -> str:
    return "-" if value is None else str(value)


def _short(key: str, keys: list[str]) -> str:
    """The end of a dotted key, at least two parts and as much as tells it from the others."""
    parts = key.split(".")
    for length in range(min(2, len(parts)), len(parts)):
        short = ".".join(parts[-length:])
        if sum(other.endswith("." + short) for other in keys) == 1:
            return short
    return key


def show_left_out(console: Console, problems: Sequence[RunError]) -> None:
    """Print why runs are not in the table; nothing where all are."""
    if problems:
        console.print(f"[yellow]left out: {len(problems)} {'run' if len(problems) == 1 else 'runs'}[/], unreadable")
        for problem in problems:
            console.print(str(problem), markup=False, highlight=False, soft_wrap=True)
