"""Prints what `rlhf generate` found: the curve of best-of-n, as a table and drawn, and the data that was made."""

from __future__ import annotations

from collections.abc import Mapping

import plotext
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlhf_cli.numerics.intervals import Estimate, attempt_counts
from rlhf_cli.sampling.best_of_n import BestOfN
from rlhf_cli.sampling.worth_training_on import MadeRows
from rlhf_cli.screen.one_line import figure

_PLOT_COLUMNS, _PLOT_ROWS = 64, 10


def show_best_of_n(console: Console, best: BestOfN) -> None:
    """Print the table of the curve and, where it has more than one point, the curve."""
    if best.left_out:
        words = f"{best.left_out} prompts are not in it: an answer of theirs has no {best.by}"
        console.print(Text(words, style="yellow"))
    if not best.curve:
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    names = list(best.curve[0].rewards)
    for column in ("best of", f"{best.by}", *names, "cut off", "KL up to"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in (best.curve[k - 1] for k in attempt_counts(len(best.curve))):
        cut = one.truncated.mean
        cells = [figure(one.rewards[name].mean) for name in names]
        table.add_row(
            str(one.k),
            _with_interval(one.score),
            *cells,
            "-" if cut is None else f"{cut:.0%}",
            f"{one.kl_bound:.3f}",
        )
    console.print(table)
    if len(best.curve) > 1:
        console.print(Text(f"\n{best.by} of the best of k, by k", style="dim"))
        console.print(Text.from_ansi(_curve(best, console.width)), soft_wrap=True)


def show_made(console: Console, made: Mapping[str, MadeRows], commands: Mapping[str, str]) -> None:
    """Print how many rows each file got, why prompts gave none, and a command that reads it."""
    for name, one in made.items():
        console.print(Text.assemble(("\n" + str(len(one.rows)), "bold"), f" rows in {name}"), highlight=False)
        for reason, count in one.left_out.items():
            console.print(f"[dim]  {count} prompts gave none: {reason}", highlight=False)
        if one.rows:
            console.print(f"  [cyan]{commands[name]}", soft_wrap=True, highlight=False)


def _curve(best: BestOfN, room: int) -> str:
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(min(_PLOT_COLUMNS, room), _PLOT_ROWS)
    counts = [one.k for one in best.curve]
    plotext.plot(counts, [one.score.mean or 0.0 for one in best.curve], marker="braille")
    plotext.yfrequency(4)
    plotext.xticks(attempt_counts(len(counts)))
    built: str = plotext.build()
    return built.rstrip("\n")


def _with_interval(one: Estimate) -> str:
    bounds = "" if one.low is None or one.high is None else f" [{one.low:.3f}, {one.high:.3f}]"
    return figure(one.mean) + bounds
