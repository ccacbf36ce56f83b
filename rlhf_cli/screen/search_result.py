"""Print the heading of a search and its result: the best trials, or the Pareto front of several objectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

_MOST = 10
_BEST = "★"


@dataclass(frozen=True)
class TrialRow:
    """A trial of a search: its settings (short key -> value) and its value for each objective, empty if it has none.

    `is_best` marks the best trial, or all trials on the Pareto front.
    """

    name: str
    settings: Mapping[str, str]
    values: tuple[float, ...]
    state: str
    is_best: bool


def show_search(
    console: Console, *, objectives: Sequence[str], space: Mapping[str, str], how: str, folder: str
) -> None:
    """Print the heading of a search. `space` maps key -> possible values; `how` describes the sampler and pruner."""
    aims = [f"less {text.removeprefix('-')}" if text.startswith("-") else f"more {text}" for text in objectives]
    console.print(Text.assemble(("search", "bold"), f" for {' and '.join(aims)}"))
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    for key, may_be in space.items():
        facts.add_row(Text(f"  {key}"), Text(may_be))
    facts.add_row("  trials", Text(how))
    facts.add_row("  folder", Text(folder, overflow="fold"))
    console.print(facts)


def show_found(console: Console, rows: Sequence[TrialRow], *, objectives: Sequence[str], again: str) -> None:
    """Print the best trials, best first, and the command `again`, which repeats the best one over several seeds."""
    done = [row for row in rows if row.values]
    if not done:
        console.print(f"none of {len(rows)} trials came to a value", style="yellow")
        return
    less = [text.startswith("-") for text in objectives]

    def rank(row: TrialRow) -> tuple[bool, float]:
        return not row.is_best, row.values[0] if less[0] else -row.values[0]

    shown = sorted(done, key=rank)[: max(_MOST, sum(row.is_best for row in done) if len(objectives) > 1 else 0)]
    keys = list(shown[0].settings)
    table = Table(header_style="bold", padding=(0, 1, 0, 0), box=None)
    table.add_column("")
    table.add_column("trial", no_wrap=True)
    for objective in objectives:
        table.add_column(Text(objective, overflow="fold"), justify="right")
    for key in keys:
        table.add_column(Text(key, overflow="fold"), justify="right")
    for row in shown:
        cells = [Text(f"{value:.4g}") for value in row.values]
        settings = [Text(row.settings.get(key, "-")) for key in keys]
        name = Text(row.name.partition(",")[0].removeprefix("trial="))
        table.add_row(_BEST if row.is_best else "", name, *cells, *settings, style=None if row.is_best else "dim")
    console.print(table)
    kind = "nothing was better in all of these at once" if len(objectives) > 1 else "the best"
    counts = ", ".join(f"{count} {state}" for state, count in _counts(rows).items())
    console.print(f"[dim]{_BEST} {kind}; {counts}", highlight=False)
    console.print("one seed each, and the best of many is also the luckiest; over seeds:", highlight=False)
    console.print(f"  {again}", markup=False, highlight=False, soft_wrap=True)


def _counts(rows: Sequence[TrialRow]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.state] = counts.get(row.state, 0) + 1
    return counts
