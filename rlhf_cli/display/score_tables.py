"""Print the tables of `rlhf score`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from rlhf_cli.display.tables import BlockColumn, Cell, show_blocks
from rlhf_cli.display.terminal import BARS, cut_end, figure, no_total, one_line
from rlhf_cli.measure.score_bench import ScoreBench, ScoreDistribution
from rlhf_cli.rewards.stack.scored_rows import CompletionScores, ScoredReward
from rlhf_cli.rewards.stack.token_offsets import ScoredPart

_MAX_ROWS = 20
_COMPLETION, _LEAST_COMPLETION = 40, 16
_NARROW = 100
_STRONG = 0.5
Rows = Sequence[Mapping[str, object]]
"""The completions, in the order of their scores."""


def show_bench(console: Console, rows: Rows, scores: CompletionScores, bench: ScoreBench) -> None:
    """Print the whole result of `rlhf score`."""
    show_scores(console, rows, scores)
    show_distributions(console, bench)
    show_correlations(console, bench)
    if bench.label is not None:
        separates: dict[str, list[Cell]] = {"ROC AUC": [figure(one) for one in bench.roc_auc.values()]}
        _by_name(console, f"by {bench.label}", list(bench.roc_auc), separates)
        console.print("[dim]ROC AUC: how often a good row has the higher score, a tie half")


def show_scores(console: Console, rows: Rows, scores: CompletionScores) -> None:
    """Print the first rows with the raw score of each component (`gate` if closed), then a summary of all rows."""
    shown = list(zip(rows[:_MAX_ROWS], scores.rows, strict=False))
    columns = [BlockColumn(name, [_cell(scored.rewards[name]) for _, scored in shown]) for name in scores.summary]
    columns.append(BlockColumn("total", [figure(scored.total) for _, scored in shown]))
    taken = len("row  ") + 2 + sum(max(column.width, 7) + 2 for column in columns)
    width = max(_LEAST_COMPLETION, min(_COMPLETION, console.width - taken))
    texts = [cut_end(one_line(row["completion"]), width) for row, _ in shown]
    heads = [
        BlockColumn("row", [(str(number), "dim") for number in range(len(shown))], is_head=True),
        BlockColumn("completion", texts, is_head=True, is_number=False),
    ]
    show_blocks(console, [*heads, *columns])
    if len(rows) > _MAX_ROWS:
        console.print(f"[dim]... {len(rows) - _MAX_ROWS} more rows; --json prints all")
    if scores.no_total is not None:
        console.print(no_total(scores.no_total))
    summary = scores.summary.values()
    facts: dict[str, list[Cell]] = {
        "mean": [figure(one.mean) for one in summary],
        "effective": [figure(one.effective_mean) for one in summary],
        "weighted": [figure(one.weighted_mean) for one in summary],
        "open": [f"{one.open_fraction:.0%}" for one in summary],
        "excluded": [str(one.excluded) for one in summary],
        "errors": [str(one.errors) for one in summary],
        "calls": [str(one.calls) for one in summary],
    }
    _by_name(console, f"all {len(rows)} rows", list(scores.summary), facts)
    console.print("[dim]rows: raw score; mean: raw, where scored; effective: after offset, clip, normalise and gate")


def show_distributions(console: Console, bench: ScoreBench) -> None:
    """Print the distribution of each component's raw scores: deviation, quantiles and a histogram."""
    # On a narrow terminal, show fewer quantiles to leave room for the names.
    places = {"least": 0, "median": 3, "most": 6}
    if console.width >= _NARROW:
        places = {"least": 0, "5 %": 1, "median": 3, "95 %": 5, "most": 6}
    found = bench.distributions
    facts: dict[str, list[Cell]] = {"deviation": [figure(one.deviation) for one in found.values()]}
    for column, place in places.items():
        facts[column] = [f"{one.quantiles[place]:.4g}" if one.quantiles else "-" for one in found.values()]
    histograms = BlockColumn("least to most", [f"{histogram(one):<16}" for one in found.values()], is_number=False)
    _by_name(console, "raw scores", list(found), facts, histograms)


def histogram(one: ScoreDistribution) -> str:
    """Return the bins as a line of bars: a blank for an empty bin, the tallest bar for the largest bin."""
    if len(one.bins) < 2:
        return "all equal" if one.count else ""
    most = max(one.bins)
    return "".join(" " if count == 0 else BARS[round(count / most * (len(BARS) - 1))] for count in one.bins)


def show_correlations(console: Console, bench: ScoreBench) -> None:
    """Print the rank correlations between all columns, in blocks if the terminal is narrow."""
    ranks = {frozenset((one.first, one.second)): one.ranks for one in bench.correlations}
    names = list(dict.fromkeys(name for one in bench.correlations for name in (one.first, one.second)))
    if len(names) < 2:
        return
    facts: dict[str, list[Cell]] = {
        other: [
            _strength(ranks[frozenset((name, other))]) if before < place else ""
            for before, name in enumerate(names[:-1])
        ]
        for place, other in enumerate(names)
        if place
    }
    _by_name(console, "rank correlation", names[:-1], facts)


def _by_name(
    console: Console, title: str, names: Sequence[str], facts: Mapping[str, Sequence[Cell]], *more: BlockColumn
) -> None:
    """Print one row per name under `title`. Columns that do not fit continue in another table."""
    console.print()
    columns = [BlockColumn(column, cells) for column, cells in facts.items()]
    show_blocks(console, [BlockColumn(title, names, is_head=True, is_number=False), *columns, *more])


def _cell(one: ScoredReward) -> Cell:
    if one.error is not None:
        return "error", "red"
    return figure(one.raw) if one.open else ("gate", "yellow")


def _strength(value: float | None) -> Cell:
    strong = value is not None and abs(value) >= _STRONG
    return ("-" if value is None else f"{value:+.2f}", "bold" if strong else "")


_GAIN, _LOSS, _NONE = "black on green", "black on red", "black on white"


def show_parts(console: Console, rows: Rows, scores: CompletionScores) -> None:
    """Print the scores of each row, and its text once per reward that scored parts of it.

    The reward of a part follows it in brackets, so that it is readable without colours and cannot be confused with
    digits of the text.
    """
    for number, (row, scored) in enumerate(zip(rows, scores.rows, strict=False)):
        said = ", ".join(f"{name} {figure(one.raw)}" for name, one in scored.rewards.items())
        console.print(Text.assemble((f"row {number}  ", "bold"), f"total {figure(scored.total)}  ({said})"))
        completion = row["completion"]
        text = str(completion[-1]["content"]) if isinstance(completion, list) and completion else str(completion or "")
        by_part = {name: one.parts for name, one in scored.rewards.items() if one.parts is not None}
        if not by_part:
            console.print(Text(text), soft_wrap=True)
        for name, parts in by_part.items():
            console.print(Text(name, style="dim"))
            console.print(_coloured(text, parts), soft_wrap=True)
        console.print()


def _coloured(text: str, parts: Sequence[ScoredPart]) -> Text:
    """Return the text with its parts coloured. Where parts overlap, the earlier one's colour wins."""
    shown, reached = Text(), 0
    for part in parts:
        shown.append(text[reached : part.start])
        style = _GAIN if part.reward > 0 else _LOSS if part.reward < 0 else _NONE
        shown.append(text[max(reached, part.start) : part.end], style=style)
        shown.append(f"[{part.reward:+g}]", style="bold")
        reached = max(reached, part.end)
    shown.append(text[reached:])
    return shown
