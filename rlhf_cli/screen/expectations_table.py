"""Print whether the expectations of runs were met, missed or are still open, with the measured number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlhf_cli.expectations.met_or_missed import MET, MISSED, OPEN, Outcome, Verified
from rlhf_cli.runs.run_status import FINISHED, Status, told_state

_MOST_MISSED, _MOST_TYPED = 3, 2
_STYLES = {MET: "green", MISSED: "bold red", OPEN: "yellow"}


def outcomes_table(outcomes: Sequence[Outcome]) -> Table:
    """Return a table with one line per expectation: its state, metric, bound and measured value."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("expected", no_wrap=True)
    table.add_column("metric", style="bold", overflow="fold")
    table.add_column("at", no_wrap=True)
    table.add_column("bound", overflow="fold")
    table.add_column("came to", justify="right", overflow="fold")
    for one in outcomes:
        expected = one.expectation
        came_to = one.why or "" if math.isnan(one.value) or one.state == OPEN else f"{one.value:.4g}"
        words = (expected.metric, expected.place, expected.bound)
        table.add_row(Text(one.state, _STYLES[one.state]), *(Text(word) for word in words), Text(came_to))
    return table


def at_the_end(verified: Verified, typed: Sequence[str]) -> Iterator[Text]:
    """Yield the lines for a run's last screen: how many expectations are met, each missed one, and a possible reason.

    `typed` are the overrides that the run was started with. The expectations of a shipped experiment hold only for the
    experiment as written, so the overrides may explain a miss.
    """
    outcomes = verified.outcomes
    missed = [one for one in outcomes if one.state == MISSED]
    met = sum(one.state == MET for one in outcomes)
    yield Text(f"expected: {met} of {len(outcomes)} met", style=_STYLES[MISSED if missed else verified.state or MET])
    for one in missed[:_MOST_MISSED]:
        yield Text(f"  missed: {missed_line(one)}", style="red")
    if len(missed) > _MOST_MISSED:
        yield Text(f"  and {len(missed) - _MOST_MISSED} more: rlhf verify has all", style="red")
    changes = [word.lstrip("+") for word in typed if _may_change_the_result(word)]
    own = any(word.lstrip("+~").startswith(("expect=", "expect.")) for word in typed)
    if missed and changes and not own:
        were = "were" if len(changes) > 1 else "was"
        more = f" and {len(changes) - _MOST_TYPED} more" if len(changes) > _MOST_TYPED else ""
        typed_words = f"{', '.join(changes[:_MOST_TYPED])}{more}"
        said = f"  it is expected of the experiment as written, and {typed_words} {were} typed"
        yield Text(said, style="yellow")


def show_verified(console: Console, runs: Sequence[Verified]) -> None:
    """Print the outcomes of every run; for several runs, also print a tally."""
    for run in runs:
        where = "" if run.status.state == FINISHED else f", which {_was(run.status)}"
        at = f" at step {run.status.step}"
        if not run.outcomes:
            console.print(Text.assemble((run.folder.shown, "bold"), f"{where} expects nothing"), soft_wrap=True)
            continue
        assert run.state is not None
        line = Text.assemble(
            (run.folder.shown, "bold"), f"{where}{at if where else ''}: ", (run.state, _STYLES[run.state])
        )
        console.print(line, soft_wrap=True)
        console.print(outcomes_table(run.outcomes))
    if len(runs) > 1:
        console.print(tally(runs))


def _was(status: Status) -> str:
    told = told_state(status.state, status.reason)
    return f"is {told}" if told == status.state else f"was {told}"


def tally(runs: Sequence[Verified]) -> Text:
    """Return one line that counts how many runs met their expectations."""
    states = [run.state for run in runs if run.state is not None]
    words = [f"{states.count(state)} {state}" for state in (MET, MISSED, OPEN) if state in states]
    nothing = len(runs) - len(states)
    words += [f"{nothing} expect{'s' if nothing == 1 else ''} nothing"] if nothing else []
    style = next((_STYLES[state] for state in (MISSED, OPEN) if state in states), "green")
    return Text.assemble(f"{len(runs)} runs: ", (", ".join(words), style))


def missed_line(one: Outcome) -> str:
    """Return a missed expectation in one line: `correct at the end 0.612, expected at least 0.75`."""
    came_to = f": {one.why}" if math.isnan(one.value) else f" {one.value:.4g}"
    return f"{one.expectation.metric} at {one.expectation.place}{came_to}, expected {one.expectation.bound}"


def _may_change_the_result(word: str) -> bool:
    key = word.lstrip("+~").partition("=")[0]
    return key not in ("exp", "expect", "track", "seed") and not key.startswith(("run.", "track.", "warn"))
