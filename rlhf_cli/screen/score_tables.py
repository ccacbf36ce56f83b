"""Print the tables of `rlhf score`: each component of the first rows, and a summary of all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlhf_cli.measure.component_statistics import Distribution
from rlhf_cli.measure.score_bench import ScoreBench
from rlhf_cli.measure.scored_rows import CompletionScores, ScoredReward
from rlhf_cli.screen.column_blocks import blocks_width, column_blocks
from rlhf_cli.screen.one_line import figure, no_total, one_line

_MAX_ROWS = 20
_COMPLETION = 40
_LEAST_COMPLETION = 16
_ROW = 7
"""Width of the row number and of the gaps after it and after the completion."""
_NARROW = 100
_SUMMED = ("mean", "effective", "weighted", "open", "excluded", "errors", "calls")
_HISTOGRAM = f"{'least to most':<16}"
"""The heading, padded to the width of the bars below it."""
_BARS = "▁▂▃▄▅▆▇█"


def show_scores(console: Console, rows: Sequence[Mapping[str, object]], scores: CompletionScores) -> None:
    """Print the first rows with the raw score of each component (`gate` if closed), then a summary of all rows.

    `rows` are the completions in the order of their scores. Columns that do not fit the terminal continue in another
    table.
    """
    names = [*scores.summary, "total"]
    for block in column_blocks(names, console.width - _ROW - _LEAST_COMPLETION):
        _rows(console, rows, scores, block)
    if len(rows) > _MAX_ROWS:
        console.print(f"[dim]... {len(rows) - _MAX_ROWS} more rows; --json prints all")
    if scores.no_total is not None:
        console.print(no_total(scores.no_total))
    cells = {}
    for name, one in scores.summary.items():
        means = [figure(mean) for mean in (one.mean, one.effective_mean, one.weighted_mean)]
        counts = [str(count) for count in (one.excluded, one.errors, one.calls)]
        cells[name] = dict(zip(_SUMMED, [*means, f"{one.open_fraction:.0%}", *counts], strict=True))
    _in_blocks(console, f"all {len(rows)} rows", cells, _SUMMED)
    console.print("[dim]rows: raw score; mean: raw, where scored; effective: after offset, clip, normalise and gate")


def show_distributions(console: Console, bench: ScoreBench) -> None:
    """Print the distribution of each component's raw scores: deviation, quantiles and a histogram."""
    # On a narrow terminal, show fewer quantiles to leave room for the names.
    places = {"least": 0, "5 %": 1, "median": 3, "95 %": 5, "most": 6}
    if console.width < _NARROW:
        places = {"least": 0, "median": 3, "most": 6}
    cells = {}
    for name, one in bench.distributions.items():
        shown = {column: _short(one.quantiles[place] if one.quantiles else None) for column, place in places.items()}
        cells[name] = {"deviation": figure(one.deviation), **shown, _HISTOGRAM: histogram(one)}
    _in_blocks(console, "raw scores", cells, ("deviation", *places, _HISTOGRAM))


def _in_blocks(console: Console, title: str, cells: Mapping[str, Mapping[str, str]], columns: Sequence[str]) -> None:
    """Print one row per name under `title`. Columns that do not fit continue in another table."""
    names = max(map(len, [title, *cells])) + 2
    for block in column_blocks(columns, console.width - names):
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column(title, overflow="fold")
        for column in block:
            table.add_column(column.rstrip(), justify="left" if column == _HISTOGRAM else "right", no_wrap=True)
        for name, row in cells.items():
            table.add_row(name, *(row[column] for column in block))
        console.print()
        console.print(table)


def histogram(one: Distribution) -> str:
    """Return the bins as a line of bars: a blank for an empty bin, the tallest bar for the largest bin."""
    if len(one.bins) < 2:
        return "all equal" if one.count else ""
    most = max(one.bins)
    return "".join(" " if count == 0 else _BARS[round(count / most * (len(_BARS) - 1))] for count in one.bins)


def _rows(
    console: Console, rows: Sequence[Mapping[str, object]], scores: CompletionScores, names: Sequence[str]
) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("row", justify="right", style="dim", no_wrap=True)
    width = console.width - _ROW - blocks_width(names)
    table.add_column("completion", max_width=max(1, min(_COMPLETION, width)), no_wrap=True, overflow="ellipsis")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for number, (row, scored) in enumerate(zip(rows[:_MAX_ROWS], scores.rows, strict=False)):
        cells = [Text(figure(scored.total)) if name == "total" else _cell(scored.rewards[name]) for name in names]
        table.add_row(str(number), Text(one_line(row["completion"])), *cells)
    console.print(table)


def _cell(one: ScoredReward) -> Text:
    if one.error is not None:
        return Text("error", style="red")
    if not one.open:
        return Text("gate", style="yellow")
    return Text(figure(one.raw))


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
