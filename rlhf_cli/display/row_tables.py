"""Print rows as the model sees them: prompts with trial rewards, or texts with what is trained on."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlhf_cli.display.tables import Cell, plain_table
from rlhf_cli.display.terminal import cut_end, figure, one_line
from rlhf_cli.evaluation.audit.tried_rows import LearnedText, PromptsSeen, TriedAnswer, TriedRows

_TEXT = 16
_LEGEND = "⟦trained on⟧; what stands outside is only read"
_QUANTILES = {"0": "least", "0.05": "5 %", "0.25": "25 %", "0.5": "median", "0.75": "75 %", "0.95": "95 %", "1": "most"}


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
        console.print(Text(seen.text if seen is not None else prompt), soft_wrap=True)
        if number < len(tried.answers):
            console.print(answers_table(tried.answers[number]))
    for number, texts in enumerate(tried.learned):
        console.print(_learned_row(number, texts))
    console.print()
    if tried.seen is not None:
        if tried.learned:
            console.print(Text(_LEGEND, "dim"))
        console.print(_lengths(tried.seen))
        if tried.seen.ends_with:
            console.print(Text(f"an answer ends with {tried.seen.ends_with}", "dim"))
    else:
        console.print(Text(f"no tokens: {tried.why_not_seen}", "yellow"))
    console.print()


def _learned_row(number: int, texts: list[LearnedText]) -> Text:
    """Return a row's texts one below the other, with what is trained on between brackets."""
    shown = Text("\n").append(f"row {number}", "bold")
    if not texts:
        shown.append("\n  left out: trainer.args.max_length leaves no token to train on", "yellow")
    for text in texts:
        learned = f", {text.learned_tokens} of them trained on" if text.learned_tokens < text.tokens else ""
        shown.append(f"\n  {text.column}, {text.tokens} tokens{learned}\n", "dim")
        for span in text.spans:
            shown.append(f"⟦{span.text}⟧" if span.is_learned else span.text, "" if span.is_learned else "dim")
    return shown


def answers_table(answers: list[TriedAnswer]) -> Table:
    """Return a table with one column per trial answer, one line per reward, and the total."""
    names = list(answers[0].raw)
    rows: list[list[Cell]] = []
    for name in names:
        scores: list[Cell] = [("raises", "red") if name in one.errors else figure(one.raw[name]) for one in answers]
        rows.append([name, *scores])
    rows.append([("total", "bold"), *(figure(one.total) for one in answers)])
    rows.append([("answer", "dim"), *((f"'{cut_end(one_line(one.text), _TEXT)}'", "dim") for one in answers)])
    table = plain_table(["reward"], [one.kind for one in answers], rows=rows, head="dim", indent=2)
    errors = [(name, answer.kind, error) for answer in answers for name, error in answer.errors.items()]
    for name, kind, error in errors[-1:]:
        table.caption = Text(f"rewards.{name} on {kind}: {error}", "red")
    return table


def _lengths(seen: PromptsSeen) -> Table:
    rows = [(one.of, str(one.count), *(f"{one.quantiles[at]:.0f}" for at in _QUANTILES)) for one in seen.lengths]
    return plain_table(["tokens of"], ["texts", *_QUANTILES.values()], rows=rows, head="dim")
