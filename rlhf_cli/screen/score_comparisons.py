"""Print the comparisons of `rlhf score`: components with each other or a label, and two weightings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlhf_cli.measure.score_bench import ScoreBench
from rlhf_cli.measure.scored_rows import CompletionScores
from rlhf_cli.measure.two_weightings import TwoWeightings
from rlhf_cli.screen.column_blocks import column_blocks
from rlhf_cli.screen.one_line import figure, one_line
from rlhf_cli.screen.score_tables import show_distributions, show_scores

_STRONG = 0.5
_TEXT = 40


def show_bench(
    console: Console, rows: Sequence[Mapping[str, object]], scores: CompletionScores, bench: ScoreBench
) -> None:
    """Print the whole result of `rlhf score`."""
    show_scores(console, rows, scores)
    show_distributions(console, bench)
    show_correlations(console, bench)
    show_label(console, bench, rows)
    if bench.against is not None:
        show_two_weightings(console, bench.against, [row.total for row in scores.rows])


def show_correlations(console: Console, bench: ScoreBench) -> None:
    """Print the rank correlations between all columns, in blocks if the terminal is narrow."""
    ranks = {frozenset((one.first, one.second)): one.ranks for one in bench.correlations}
    names = list(dict.fromkeys(name for one in bench.correlations for name in (one.first, one.second)))
    if len(names) < 2:
        return
    first = max(len("rank correlation"), *map(len, names)) + 2
    for block in column_blocks(names[1:], max(20, console.width - first)):
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column("rank correlation", no_wrap=True)
        for name in block:
            table.add_column(name, justify="right", no_wrap=True)
        for name in names[: names.index(block[-1])]:
            is_before = [names.index(name) < names.index(other) for other in block]
            cells = [
                _strength(ranks[frozenset((name, other))]) if before else Text("")
                for other, before in zip(block, is_before, strict=True)
            ]
            table.add_row(name, *cells)
        console.print()
        console.print(table)


def show_label(console: Console, bench: ScoreBench, rows: Sequence[Mapping[str, object]]) -> None:
    """Print how well each component separates good rows from bad ones, and the rows that contradict the total most."""
    if bench.label is None:
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(f"by {bench.label}", overflow="fold")
    for column in ("ROC AUC", "good from", "agrees", "95 %", "good", "bad"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in bench.agreements:
        low, high = one.agreement.low, one.agreement.high
        span = "-" if low is None or high is None else f"{low:.0%} to {high:.0%}"
        share = "-" if one.agreement.mean is None else f"{one.agreement.mean:.0%}"
        threshold = "never" if one.threshold is None else f"{one.threshold:.4g}"
        table.add_row(one.name, figure(one.roc_auc), threshold, share, span, str(one.num_good), str(one.num_bad))
    console.print()
    console.print(table)
    console.print("[dim]ROC AUC: how often a good row has the higher score, a tie half; agrees: with that threshold")
    for row in bench.disagreeing:
        shown = one_line(rows[row]["completion"])
        shown = shown if len(shown) <= _TEXT else shown[: _TEXT - 1] + "…"
        said = f"row {row}, {bench.label}={rows[row][bench.label]}, and its total says otherwise: "
        console.print(Text.assemble((said, "yellow"), f"'{shown}'"))


def show_two_weightings(console: Console, one: TwoWeightings, totals: Sequence[float | None]) -> None:
    """Print two weightings side by side: totals, rank correlation, and changes of the best answers."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("total", overflow="fold")
    table.add_column("mean", justify="right", no_wrap=True)
    has_label = one.roc_auc is not None
    if has_label:
        table.add_column("ROC AUC", justify="right", no_wrap=True)
    table.add_row("as typed", figure(one.mean), *([figure(one.roc_auc)] if has_label else []))
    table.add_row(" ".join(one.words), figure(one.other_mean), *([figure(one.other_roc_auc)] if has_label else []))
    console.print()
    console.print(table)
    best = f"; the best answer is another one for {one.num_other_best} of {one.num_prompts} prompts"
    console.print(f"rank correlation of the two {figure(one.ranks)}{best if one.num_prompts else ''}", highlight=False)
    for row, move in one.moved:
        turned = f"row {row} {'up' if move > 0 else 'down'} {abs(move):g}"
        console.print(f"{turned}: {figure(totals[row])} -> {figure(one.totals[row])}", highlight=False)


def _strength(value: float | None) -> Text:
    strong = value is not None and abs(value) >= _STRONG
    return Text("-" if value is None else f"{value:+.2f}", "bold" if strong else "")
