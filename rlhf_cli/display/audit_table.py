"""Print an audit (gold answers, degenerate answers, holes, fixes) and rows as the model sees them."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rlhf_cli.display.terminal import Cell, cut_end, figure, one_line, plain_table
from rlhf_cli.evaluation.audit.audit_result import AuditResult, KindResult
from rlhf_cli.plan.batches import count
from rlhf_cli.trainers.assemble.tried_rows import TriedAnswer, TriedRows

_TEXT = 100
_MOST_SHOWN = 5


def show_audit(console: Console, result: AuditResult) -> None:
    """Print an audit, with the verdict last."""
    console.print(f"{result.rows} rows, {len(result.kinds)} kinds of degenerate answer, {result.texts} texts scored")
    if result.gold_source is None:
        why = "no right answers: no column holds them, or it needs --gold COLUMN."
        compared = "The kinds are only compared with each other: honest answers must score more than the first"
        console.print(Text(f"{why} {compared}", "yellow"))
    else:
        parts = ", ".join(f"{name} {figure(value)}" for name, value in result.gold_contributions.items())
        total = f"total {figure(result.gold_total)} ({parts})"
        console.print(f"gold: {result.gold_source}, written: {result.gold_way}; {total}")
        console.print(Text(f"      {_shortened(result.gold_text or '')}", "dim"))
    for name, why in result.left_out.items():
        console.print(Text.assemble(("left out  ", "yellow"), f"rewards.{name}: {why}"))
    for note in result.notes:
        console.print(Text.assemble(("note      ", "yellow"), note))
    console.print()
    console.print(_table(result))
    holes = [*result.holes, *result.near]
    for kind in holes[:_MOST_SHOWN]:
        _show_hole(console, kind)
    if len(holes) > _MOST_SHOWN:
        console.print(f"\n... and {len(holes) - _MOST_SHOWN} more; --kinds shows them", style="dim")
    raised = {name: (kind, message) for kind in result.kinds for name, message in kind.errors.items()}
    for name, (kind, message) in raised.items():
        line = f"\nrewards.{name} raises on {kind.name} ({message}), which ends a training"
        console.print(Text(f"{line} unless rewards.{name}.on_error is exclude or a number", "yellow"))
    if result.advice:
        console.print(Text("\nwhat to do", "bold"))
    for number, advice in enumerate(result.advice, 1):
        _indented(console, Text(f"{number}. {', '.join(advice.kinds)}: {advice.reason}"), 2)
        if advice.words:
            words = " ".join(f"'{word}'" if any(sign in word for sign in " {}") else word for word in advice.words)
            _indented(console, Text(words, "cyan"), 5)
    console.print()
    if result.unrecognised:
        blind = "".join(f" rewards.{name} gives every text the same score." for name in result.blind)
        line = (
            f"in {result.num_unrecognised} of {result.rows} rows the gold answer scores no more than the worst of "
            f"these answers.{blind} Either the rewards do not reward right answers, or they expect another form: "
            "--gold '<answer>{answer}</answer>'"
        )
        console.print(Text(line, "red"))
    if result.holes or not result.unrecognised:
        console.print(_verdict(result))


def _table(result: AuditResult) -> Table:
    has_gold = result.gold_source is not None
    rows: list[list[Cell]] = []
    for kind in result.kinds:
        mark, style = ("hole", "bold red") if kind.is_hole else ("near", "yellow") if kind.is_near else ("", "")
        margin = "-" if kind.margin is None else f"{kind.margin:+.3f}"
        share = [margin, f"{kind.beats}/{kind.rows}", f"{kind.ties}/{kind.rows}"] if has_gold else []
        rows.append([(mark, style), (kind.name, style), figure(kind.mean_total), *share, kind.let_in or ""])
    numbers = ["total", *(["minus gold", "beats", "ties"] if has_gold else [])]
    return plain_table(["", "answer"], numbers, ["rewarded by"], rows=rows)


def _show_hole(console: Console, kind: KindResult) -> None:
    console.print(Text.assemble((f"\n{kind.name}", "bold red" if kind.is_hole else "yellow"), f": {kind.caption}"))
    lines = [f"row {kind.shown_row}: {_shortened(kind.text)}"]
    low, high = kind.share.low, kind.share.high
    if kind.is_hole and low is not None and high is not None:
        rows = f"{kind.beats + kind.ties} of {kind.rows} rows (95 %: {low:.0%} to {high:.0%})"
        lines.append(f"scores at least as much as gold in {rows}")
    elif kind.is_near:
        lines.append("not a hole yet: its total is close to gold's, or it gets all of gold's main reward")
    parts = (
        f"{name} {figure(part.attack)}" + (f" (gold {figure(part.gold)})" if part.gold is not None else "")
        for name, part in kind.contributions.items()
    )
    for line in [*lines, ", ".join(parts)]:
        _indented(console, Text(line), 2)


def _indented(console: Console, text: Text, by: int) -> None:
    console.print(Padding(text, (0, 0, 0, by), expand=False))


def _verdict(result: AuditResult) -> Text:
    if not result.kinds:
        return Text("these kinds of answer cannot be written without right answers", "yellow")
    if result.is_sound is None:
        best = result.kinds[0]
        return Text(f"no verdict without right answers; {best.name} scores most, {figure(best.mean_total)}")
    close = f"; near: {', '.join(kind.name for kind in result.near)}" if result.near else ""
    if number := len(result.holes):
        holes, verb = ", ".join(kind.name for kind in result.holes), "score" if number > 1 else "scores"
        return Text(f"{count(number, 'hole')}: {holes} {verb} at least as much as gold{close}", "red")
    few = f"; {result.num_unrecognised} rows do not reward the gold answer" if result.num_unrecognised else ""
    return Text(f"no hole in {len(result.kinds)} kinds of answer{close}{few}", "yellow" if close else "green")


def _shortened(text: str) -> str:
    return f"'{cut_end(one_line(text), _TEXT)}'"


_ANSWER = 16
_LEGEND = "⟦trained on⟧; the model only reads the rest"
_QUANTILES = {"0": "least", "0.05": "5 %", "0.25": "25 %", "0.5": "median", "0.75": "75 %", "0.95": "95 %", "1": "most"}


def show_tried_rows(console: Console, tried: TriedRows) -> None:
    """Print each prompt as the model sees it with its trial rewards, then the lengths of all rows."""
    if tried.gold_source is not None:
        console.print(Text(f"right answers: {tried.gold_source}, written: {tried.gold_way}", "dim"))
    elif tried.answers:
        console.print(Text("no column holds right answers", "dim"))
    for name, why in tried.left_out.items():
        console.print(Text(f"rewards.{name} is not tried: {why}", "yellow"))
    for note in tried.notes:
        console.print(Text(note, "yellow"))
    for number, prompt in enumerate(tried.prompts):
        seen = tried.seen.prompts[number] if tried.seen is not None else None
        tokens = f", {seen.tokens} tokens" if seen is not None else ""
        console.print(Text(f"\nrow {number}{tokens}", "bold"))
        console.print(Text(seen.text if seen is not None else prompt), soft_wrap=True)
        if number < len(tried.answers):
            console.print(answers_table(tried.answers[number]))
    for number, texts in enumerate(tried.learned):
        shown = Text("\n").append(f"row {number}", "bold")
        if not texts:
            shown.append("\n  left out: trainer.args.max_length leaves no token to train on", "yellow")
        for text in texts:
            learned = f", {text.learned_tokens} of them trained on" if text.learned_tokens < text.tokens else ""
            shown.append(f"\n  {text.column}, {text.tokens} tokens{learned}\n", "dim")
            for span in text.spans:
                shown.append(f"⟦{span.text}⟧" if span.is_learned else span.text, "" if span.is_learned else "dim")
        console.print(shown)
    console.print()
    if tried.seen is not None:
        if tried.learned:
            console.print(Text(_LEGEND, "dim"))
        lengths = [
            (texts.of, str(texts.count), *(f"{texts.quantiles[at]:.0f}" for at in _QUANTILES))
            for texts in tried.seen.lengths
        ]
        console.print(plain_table(["tokens of"], ["texts", *_QUANTILES.values()], rows=lengths, head="dim"))
        if tried.seen.ends_with:
            console.print(Text(f"an answer ends with {tried.seen.ends_with}", "dim"))
    else:
        console.print(Text(f"no tokens: {tried.why_not_seen}", "yellow"))
    console.print()


def answers_table(answers: list[TriedAnswer]) -> Table:
    """Return a table with one column per trial answer, one line per reward, and the total."""
    rows: list[list[Cell]] = []
    for name in answers[0].raw:
        scores = [("raises", "red") if name in answer.errors else figure(answer.raw[name]) for answer in answers]
        rows.append([name, *scores])
    rows.append([("total", "bold"), *(figure(answer.total) for answer in answers)])
    texts = [(f"'{cut_end(one_line(answer.text), _ANSWER)}'", "dim") for answer in answers]
    rows.append([("answer", "dim"), *texts])
    table = plain_table(["reward"], [answer.kind for answer in answers], rows=rows, head="dim", indent=2)
    errors = ((answer.kind, *entry) for answer in answers for entry in answer.errors.items())
    raised = "\n".join(f"rewards.{name} on {kind}: {error}" for kind, name, error in errors)
    table.caption = Text(raised, "red") if raised else None
    return table
