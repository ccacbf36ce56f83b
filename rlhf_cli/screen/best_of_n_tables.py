"""Print the output of `rlhf generate`: the best-of-n curve as a table and a plot, and the data files it made."""

from __future__ import annotations

from collections.abc import Mapping

import plotext
from rich.console import Console
from rich.text import Text

from rlhf_cli.numerics.intervals import Estimate, attempt_counts
from rlhf_cli.sampling.best_of_n import BestOfN
from rlhf_cli.sampling.worth_training_on import MadeRows
from rlhf_cli.screen.comparison_table import Column, show_blocks
from rlhf_cli.screen.one_line import figure

_PLOT_COLUMNS, _PLOT_ROWS = 64, 10


def show_best_of_n(console: Console, best: BestOfN) -> None:
    """Print the curve as a table, and plot it if it has more than one point."""
    if best.left_out:
        words = f"{best.left_out} prompts are not in it: an answer of theirs has no {best.by}"
        console.print(Text(words, style="yellow"))
    if not best.curve:
        return
    rows = [best.curve[k - 1] for k in attempt_counts(len(best.curve))]
    columns = [
        Column("best of", [str(one.k) for one in rows], is_head=True),
        Column(best.by, [_with_interval(one.score) for one in rows]),
        *(Column(name, [figure(one.rewards[name].mean) for one in rows]) for name in rows[0].rewards),
        Column("cut off", ["-" if one.truncated.mean is None else f"{one.truncated.mean:.0%}" for one in rows]),
        Column("KL up to", [f"{one.kl_bound:.3f}" for one in rows]),
    ]
    show_blocks(console, columns, ["" for _ in rows])
    if len(best.curve) > 1:
        console.print(Text(f"\n{best.by} of the best of k, by k", style="dim"))
        console.print(Text.from_ansi(_curve(best, console.width)), soft_wrap=True)


def show_made(console: Console, made: Mapping[str, MadeRows], commands: Mapping[str, str]) -> None:
    """Print how many rows each file got, why some prompts gave none, and a command that reads the file."""
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
