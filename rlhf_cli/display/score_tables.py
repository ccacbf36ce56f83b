"""Print the tables of `rlhf score`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlhf_cli.display.terminal import blocks_width, column_blocks, figure, no_total, one_line
from rlhf_cli.measure.score_bench import ScoreBench, ScoreDistribution, TwoWeightings
from rlhf_cli.rewards.stack.scored_rows import CompletionScores, ScoredPart, ScoredReward

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


def histogram(one: ScoreDistribution) -> str:
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


_GAIN, _LOSS, _NONE = "black on green", "black on red", "black on white"


def show_parts(console: Console, rows: Sequence[Mapping[str, object]], scores: CompletionScores) -> None:
    """Print the scores of each row, and its text once per reward that scored parts of it.

    `rows` are the completions in the order of their scores. The reward of a part follows it in brackets, so that it is
    readable without colours and cannot be confused with digits of the text.
    """
    for number, (row, scored) in enumerate(zip(rows, scores.rows, strict=False)):
        said = ", ".join(f"{name} {figure(one.raw)}" for name, one in scored.rewards.items())
        console.print(Text.assemble((f"row {number}  ", "bold"), f"total {figure(scored.total)}  ({said})"))
        text = _text(row["completion"])
        by_part = {name: one for name, one in scored.rewards.items() if one.parts is not None}
        if not by_part:
            console.print(Text(text), soft_wrap=True)
        for name, one in by_part.items():
            console.print(Text(name, style="dim"))
            console.print(_coloured(text, one), soft_wrap=True)
        console.print()


def _coloured(text: str, reward: ScoredReward) -> Text:
    """Return the text with its parts coloured. Where parts overlap, the earlier one's colour wins."""
    shown, reached = Text(), 0
    for part in reward.parts or []:
        shown.append(text[reached : part.start])
        begin = max(reached, part.start)
        shown.append(text[begin : part.end], style=_style(part))
        shown.append(f"[{part.reward:+g}]", style="bold")
        reached = max(reached, part.end)
    shown.append(text[reached:])
    return shown


def _style(part: ScoredPart) -> str:
    return _GAIN if part.reward > 0 else _LOSS if part.reward < 0 else _NONE


def _text(completion: object) -> str:
    """Return a text unchanged; for a conversation, return the last message."""
    if isinstance(completion, list):
        return str(completion[-1]["content"]) if completion else ""
    return str(completion)
