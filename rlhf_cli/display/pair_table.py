"""Draw the scored pairs of a reward model. The process that trains imports this file, so it stays light."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from rlhf_cli.display.terminal import figure
from rlhf_cli.measure.scored_pairs import ScoredPair

_PROMPT_WIDTH, _WIDTH = 24, 40
_STYLE = {"right": "green", "wrong": "red", "tie": "yellow"}


def pair_table(pairs: Sequence[ScoredPair]) -> Table:
    """Return a table of scored pairs of one step. The title counts the pairs in the right order."""
    right = sum(pair.verdict == "right" for pair in pairs)
    title = f"step {pairs[0].step}: {right} of {len(pairs)} pairs in the right order"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), header_style="bold")
    has_margin = any(pair.margin is not None for pair in pairs)
    table.add_column("prompt", no_wrap=True)
    for answer in ("chosen", "rejected"):
        table.add_column(answer, max_width=_WIDTH)  # these columns shrink on a narrow screen
        table.add_column("score", justify="right", no_wrap=True)
    if has_margin:
        table.add_column("margin", justify="right", no_wrap=True)
    table.add_column("order", no_wrap=True)
    for pair in pairs:
        prompt = _on_one_line(pair.prompt.rstrip().removesuffix("Assistant:"))
        table.add_row(
            Text(prompt if len(prompt) <= _PROMPT_WIDTH else "…" + prompt[1 - _PROMPT_WIDTH :]),
            Text(_on_one_line(pair.chosen), no_wrap=True, overflow="ellipsis"),
            figure(pair.score_chosen),
            Text(_on_one_line(pair.rejected), no_wrap=True, overflow="ellipsis"),
            figure(pair.score_rejected),
            *([figure(pair.margin)] if has_margin else []),
            Text(pair.verdict, _STYLE[pair.verdict]),
        )
    return table


def _on_one_line(text: str) -> str:
    return repr(" ".join(text.split()))[1:-1]
