"""Print the state of runs, the outcomes of their expectations, and reproductions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from rlhf_cli.analysis.expectations import MET, MISSED, OPEN, ExpectationOutcome, VerifiedRun
from rlhf_cli.analysis.reproducibility import Reproduction
from rlhf_cli.display.sweep_tables import STATE_STYLE
from rlhf_cli.display.tables import BlockColumn, Cell, as_text, plain_table, show_blocks
from rlhf_cli.display.terminal import span
from rlhf_cli.errors import in_one_line
from rlhf_cli.runs.run_overview import Overview
from rlhf_cli.runs.run_status import FINISHED, describe_state

_NUMBERS = ("step", "s/step", "left", "logged", "saved")


def show_overview(console: Console, overview: Overview) -> None:
    """Print one row per run without the empty columns, and why Slurm could not be queried."""
    rows = overview.rows
    states = [describe_state(row.state, row.reason).partition(" ")[0] for row in rows]  # the reason stands for itself
    columns: dict[str, list[Cell]] = {
        "run": [row.run for row in rows],
        "state": [(state, STATE_STYLE.get(row.state, "")) for row, state in zip(rows, states, strict=True)],
        "step": [f"{row.step}/{row.max_steps}" if row.max_steps else str(row.step or "") for row in rows],
        "s/step": ["" if row.s_per_step is None else f"{row.s_per_step:.2f}" for row in rows],
        "left": [span(row.time_left_s) for row in rows],
        "logged": ["" if row.log_age_s is None else f"{span(row.log_age_s)} ago" for row in rows],
        "saved": [(row.last_checkpoint or "").replace("checkpoint-", "step ") for row in rows],
        "job": [" ".join(part for part in (row.job_id, row.slurm_state) if part) for row in rows],
    }
    shown = {name: cells for name, cells in columns.items() if any(as_text(cell).plain for cell in cells)}
    show_blocks(console, [BlockColumn(name, cells, name == "run", name in _NUMBERS) for name, cells in shown.items()])
    for row in rows:
        if row.reason:
            console.print(Text.assemble((row.run, "bold"), f": {in_one_line(row.reason)}"))
    if overview.notice is not None:
        # Later lines of squeue's message only follow from the first.
        first, _, _ = overview.notice.partition("\n")
        console.print(f"[yellow]no answer from Slurm:[/] {first}", highlight=False)


_MOST_MISSED, _MOST_TYPED = 3, 2
_LENGTHS = ("trainer.args.max_steps", "trainer.args.num_train_epochs")
_STYLES = {MET: "green", MISSED: "bold red", OPEN: "yellow"}


def at_the_end(verified: VerifiedRun) -> Iterator[Text]:
    """Yield the lines for a run's last screen: how many expectations are met, each missed one, and a possible reason.

    The expectations of an experiment hold for the experiment as written, so what was typed may explain a miss.
    """
    typed = verified.typed
    if (line := shortened_line(typed)) is not None:
        yield Text(line, style="dim")
        return
    outcomes = verified.outcomes
    missed = [outcome for outcome in outcomes if outcome.state == MISSED]
    met = sum(outcome.state == MET for outcome in outcomes)
    yield Text(f"expected: {met} of {len(outcomes)} met", style=_STYLES[MISSED if missed else verified.state or MET])
    for outcome in missed[:_MOST_MISSED]:
        yield Text(f"  missed: {missed_line(outcome)}", style="red")
    if len(missed) > _MOST_MISSED:
        yield Text(f"  and {len(missed) - _MOST_MISSED} more: rlhf verify shows all", style="red")
    changes = [word.lstrip("+") for word in typed if _may_change_the_result(word)]
    if missed and changes and not _expects(typed):
        more = f" and {len(changes) - _MOST_TYPED} more" if len(changes) > _MOST_TYPED else ""
        shown = f"{', '.join(changes[:_MOST_TYPED])}{more}"
        yield Text(f"  expectations hold for the experiment as written; {shown} changed it", style="yellow")


def shortened_line(typed: Sequence[str]) -> str | None:
    """Return the line that says why a run is not judged: its length was typed, and its `expect` was not; else None."""
    lengths = [word.lstrip("+") for word in typed if word.lstrip("+").partition("=")[0] in _LENGTHS]
    if not lengths or _expects(typed):
        return None
    return f"expectations are not checked, because {', '.join(lengths)} was typed"


def _expects(typed: Sequence[str]) -> bool:
    return any(word.lstrip("+~").startswith(("expect=", "expect.")) for word in typed)


def show_verified(console: Console, runs: Sequence[VerifiedRun]) -> None:
    """Print the outcomes of every run; for several runs, also print a tally."""
    for run in runs:
        state = describe_state(run.status.state, run.status.reason)
        ending = "" if run.status.state == FINISHED else f" ({state} at step {run.status.step})"
        outcome = "no expectations" if run.state is None else (run.state, _STYLES[run.state])
        console.print(Text.assemble((run.folder.shown, "bold"), f"{ending}: ", outcome), soft_wrap=True)
        rows: list[list[Cell]] = []
        for expected in run.outcomes:
            is_known = expected.state != OPEN and not math.isnan(expected.value)
            value = f"{expected.value:.4g}" if is_known else expected.why or ""
            expectation, style = expected.expectation, _STYLES[expected.state]
            head: list[Cell] = [(expected.state, style), (expectation.metric, "bold")]
            rows.append([*head, expectation.place, expectation.bound, value])
        if rows:
            heads = ["expected", "metric", "at", "bound"]
            console.print(plain_table(heads, ["value"], rows=rows, head="dim"))
    if len(runs) > 1:
        console.print(tally(runs))


def tally(runs: Sequence[VerifiedRun]) -> Text:
    """Return one line that counts how many runs met their expectations."""
    states = [run.state for run in runs if run.state is not None]
    words = [f"{states.count(state)} {state}" for state in (MET, MISSED, OPEN) if state in states]
    words += [f"{len(runs) - len(states)} without expectations"] if len(states) < len(runs) else []
    style = next((_STYLES[state] for state in (MISSED, OPEN) if state in states), "green")
    return Text.assemble(f"{len(runs)} runs: ", (", ".join(words), style))


def missed_line(missed: ExpectationOutcome) -> str:
    """Return a missed expectation in one line: `correct at the end 0.612, expected at least 0.75`."""
    value = f": {missed.why}" if math.isnan(missed.value) else f" {missed.value:.4g}"
    return f"{missed.expectation.metric} at {missed.expectation.place}{value}, expected {missed.expectation.bound}"


def _may_change_the_result(word: str) -> bool:
    key = word.lstrip("+~").partition("=")[0]
    return key not in ("exp", "expect", "track", "seed") and not key.startswith(("run.", "track.", "warn"))


def show_reproduction(console: Console, result: Reproduction) -> None:
    """Print whether two runs are equal, the first difference, the weights, and what else differs."""
    verdict = ("equal", "bold green") if result.equal else ("differs", "bold red")
    found = result.first_difference
    text = f": {result.numbers} numbers up to step {result.steps}"
    if found is not None:
        also = f", and so are {len(result.also)} other metrics of that step" if result.also else ""
        text = f" first at step {result.first_step}: {found.name} was {found.before}, is {found.after}{also}"
    console.print(Text.assemble(verdict, text), soft_wrap=True)
    pairs = [
        *((f"weights of {part.name}", part) for part in result.weights),
        *((one.name, one) for one in result.causes),
    ]
    rows = [[f"  {name}", *(f"{value!s:.20}" for value in (pair.before, pair.after))] for name, pair in pairs]
    if rows:
        console.print(plain_table(["", "before", "after"], rows=rows, head="dim"))
    console.print(f"run folder: {result.again}", soft_wrap=True, highlight=False)
