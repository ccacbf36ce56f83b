"""Print rows: prompts token by token, and scored pairs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlhf_cli.analysis.audit.tried_rows import PromptsSeen, SeenPrompt, TriedAnswer, TriedRows
from rlhf_cli.display.tables import Cell, plain_table
from rlhf_cli.display.terminal import figure, one_line
from rlhf_cli.measure.scored_pairs import ScoredPair

_TEXT = 32
_QUANTILES = {0.0: "least", 0.05: "5 %", 0.25: "25 %", 0.5: "median", 0.75: "75 %", 0.95: "95 %", 1.0: "most"}


def show_tried_rows(console: Console, tried: TriedRows) -> None:
    """Print each prompt as the model sees it with its trial rewards, then the lengths of all rows."""
    if tried.gold_source is not None:
        console.print(Text(f"right answers: {tried.gold_source}, written: {tried.gold_way}", "dim"))
    elif tried.answers:
        console.print(Text("no column is known to hold right answers", "dim"))
    for name, why in tried.left_out.items():
        console.print(Text(f"rewards.{name} is not tried: {why}", "yellow"))
    for note in tried.notes:
        console.print(Text(note, "yellow"))
    for number, prompt in enumerate(tried.prompts):
        console.print()
        seen = tried.seen.prompts[number] if tried.seen is not None else None
        tokens = f", {seen.tokens} tokens" if seen is not None else ""
        console.print(Text(f"row {number}{tokens}", "bold"))
        console.print(_coloured(seen) if seen is not None else Text(prompt), soft_wrap=True)
        if number < len(tried.answers):
            console.print(answers_table(tried.answers[number]))
    console.print()
    if tried.seen is not None:
        console.print(_lengths(tried.seen))
        console.print(Text(f"special tokens are shown reversed; an answer ends with {tried.seen.ends_with}", "dim"))
    else:
        console.print(Text(f"no tokens: {tried.why_not_seen}", "yellow"))
    console.print()


def _coloured(prompt: SeenPrompt) -> Text:
    return Text.assemble(*((text, "reverse" if is_special else "") for text, is_special in prompt.pieces))


def answers_table(answers: list[TriedAnswer]) -> Table:
    """Return a table with one line per trial answer: its rewards, total and text."""
    names = list(answers[0].raw)
    rows: list[list[Cell]] = []
    for answer in answers:
        scores: list[Cell] = [
            ("raises", "red") if name in answer.errors else figure(answer.raw[name]) for name in names
        ]
        text = one_line(answer.text)
        shown = text if len(text) <= _TEXT else f"{text[: _TEXT - 1]}…"
        rows.append([answer.kind, *scores, figure(answer.total), (f"'{shown}'", "dim")])
    table = plain_table(["answer"], [*names, "total"], [""], rows=rows, head="dim", indent=2)
    errors = [(name, answer.kind, error) for answer in answers for name, error in answer.errors.items()]
    for name, kind, error in errors[-1:]:
        table.caption = Text(f"rewards.{name} on {kind}: {error}", "red")
    return table


def _lengths(seen: PromptsSeen) -> Table:
    rows = [(one.of, str(one.count), *(f"{one.quantiles[at]:.0f}" for at in _QUANTILES)) for one in seen.lengths]
    return plain_table(["tokens of"], ["texts", *_QUANTILES.values()], rows=rows, head="dim")


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
