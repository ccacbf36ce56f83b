"""Print the first rows of an experiment: tokenized prompts, lengths, and rewards for trial answers."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlhf_cli.audit.prompts_seen import Lengths, PromptsSeen, SeenPrompt
from rlhf_cli.audit.tried_rows import TriedAnswer, TriedRows
from rlhf_cli.screen.one_line import figure, one_line

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
    shown = Text()
    for text, is_special in prompt.pieces:
        shown.append(text, "reverse" if is_special else "")
    return shown


def answers_table(answers: list[TriedAnswer]) -> Table:
    """Return a table with one line per trial answer: its rewards, total and text."""
    table = Table(box=None, padding=(0, 2, 0, 2), header_style="dim")
    table.add_column("answer", no_wrap=True)
    names = list(answers[0].raw)
    for name in [*names, "total"]:
        table.add_column(Text(name, overflow="fold"), justify="right")
    table.add_column("", no_wrap=True, max_width=_TEXT, overflow="ellipsis")
    for answer in answers:
        cells = [Text("raises", "red") if name in answer.errors else Text(figure(answer.raw[name])) for name in names]
        table.add_row(answer.kind, *cells, figure(answer.total), Text(f"'{one_line(answer.text)}'", "dim"))
        for name, error in answer.errors.items():
            table.caption = Text(f"rewards.{name} on {answer.kind}: {error}", "red")
    return table


def _lengths(seen: PromptsSeen) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("tokens of")
    table.add_column("texts", justify="right")
    for name in _QUANTILES.values():
        table.add_column(name, justify="right", no_wrap=True)
    for one in seen.lengths:
        table.add_row(one.of, str(one.count), *_cells(one))
    return table


def _cells(lengths: Lengths) -> list[str]:
    return [f"{lengths.quantiles[quantile]:.0f}" for quantile in _QUANTILES]
