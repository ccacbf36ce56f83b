"""Prints the tables of `rlhf score`: every component of every row, and a summary of all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlhf_cli.measure.scored_rows import CompletionScores, ScoredReward
from rlhf_cli.screen.one_line import figure, no_total, one_line

_MAX_ROWS = 20


def show_scores(console: Console, rows: Sequence[Mapping[str, object]], scores: CompletionScores) -> None:
    """Print the first rows: raw score of each component, `gate` where one is closed; then the summary of all rows.

    `rows` are the completions in the order of their scores.
    """
    names = list(scores.summary)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("row", justify="right", style="dim")
    table.add_column("completion", max_width=40, no_wrap=True, overflow="ellipsis")
    for name in [*names, "total"]:
        table.add_column(name, justify="right", no_wrap=True)
    for number, (row, scored) in enumerate(zip(rows[:_MAX_ROWS], scores.rows, strict=False)):
        cells = [_cell(scored.rewards[name]) for name in names]
        table.add_row(str(number), Text(one_line(row["completion"])), *cells, figure(scored.total))
    console.print(table)
    if len(rows) > _MAX_ROWS:
        console.print(f"[dim]... {len(rows) - _MAX_ROWS} more rows; --json prints all")
    if scores.no_total is not None:
        console.print(no_total(scores.no_total))
    summary = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    summary.add_column(f"all {len(rows)} rows")
    for column in ("mean", "effective", "weighted", "open", "excluded", "errors", "calls"):
        summary.add_column(column, justify="right")
    for name, one in scores.summary.items():
        means = [figure(mean) for mean in (one.mean, one.effective_mean, one.weighted_mean)]
        counts = [str(count) for count in (one.excluded, one.errors, one.calls)]
        summary.add_row(name, *means, f"{one.open_fraction:.0%}", *counts)
    console.print()
    console.print(summary)
    console.print("[dim]rows: raw score; mean: raw, where scored; effective: after offset, clip, normalise and gate")


def _cell(one: ScoredReward) -> Text:
    if one.error is not None:
        return Text("error", style="red")
    if not one.open:
        return Text("gate", style="yellow")
    return Text(figure(one.raw))
