"""Print the state of runs, the outcomes of their expectations, reproductions, and the plan and result of sweeps."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from rich.console import Console
from rich.text import Text

from rlhf_cli.analysis.expectations import MET, MISSED, OPEN, ExpectationOutcome, VerifiedRun
from rlhf_cli.analysis.reproducibility import Reproduction
from rlhf_cli.display.tables import (
    STATE_STYLE,
    BlockColumn,
    Cell,
    as_text,
    facts_grid,
    plain_table,
    show_blocks,
    width_of,
)
from rlhf_cli.display.terminal import span
from rlhf_cli.errors import in_one_line
from rlhf_cli.plan.batches import count
from rlhf_cli.runs.run_overview import Overview
from rlhf_cli.runs.run_status import CREATED, FINISHED, Status, describe_state

_NUMBERS = ("step", "s/step", "left", "logged", "saved")
_LEFT_OUT_FIRST = ("s/step", "saved", "logged")


def show_overview(console: Console, overview: Overview) -> None:
    """Print one row per run without the empty columns, and why Slurm could not be queried.

    On a narrow screen the folder of all runs stands above the table, and columns are left out, so that it is one table.
    """
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
    shown = [
        BlockColumn(name, cells, name == "run", name in _NUMBERS)
        for name, cells in columns.items()
        if any(as_text(cell).plain for cell in cells)
    ]
    parents = set.intersection(*({*PurePath(row.run).parents} for row in rows))
    folder = max(parents, key=lambda parent: len(parent.parts), default=PurePath())
    if folder.name and width_of(shown) > console.width:
        console.print(f"{folder}/", style="bold", markup=False, soft_wrap=True)
        shown[0] = BlockColumn("run", [row.run.removeprefix(f"{folder}/") for row in rows], True, False)
    left_out = []
    for name in _LEFT_OUT_FIRST:
        if width_of(shown) > console.width and any(column.title == name for column in shown):
            shown = [column for column in shown if column.title != name]
            left_out.append(name)
    show_blocks(console, shown)
    if left_out:
        console.print(f"no room for {', '.join(left_out)}; rlhf status --json has all", style="dim")
    for row in rows:
        if row.reason:
            console.print(Text.assemble((row.run, "bold"), f": {in_one_line(row.reason)}"))
    if overview.notice is not None:
        # Later lines of squeue's message only follow from the first.
        first, _, _ = overview.notice.partition("\n")
        console.print(f"[yellow]no answer from Slurm:[/] {first}")


_MOST_MISSED, _MOST_TYPED = 3, 2
_CHANGES_NO_RESULT = re.compile(r"(exp|expect|track|seed)$|run\.|track\.|warn")
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
    keys = {word: word.lstrip("+~").partition("=")[0] for word in typed}
    changes = [word.lstrip("+") for word, key in keys.items() if not _CHANGES_NO_RESULT.match(key)]
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
            heads = ["expected", "metric", "when", "bound"]
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
    return f"{missed.expectation.metric} {missed.expectation.place}{value}, expected {missed.expectation.bound}"


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
    console.print(f"run folder: {result.again}", soft_wrap=True)


def show_sweep(console: Console, num_runs: int, where_run: str, facts: Mapping[str, str]) -> None:
    """Print the heading of a sweep. `where_run` says how the runs are run (`2 at a time`)."""
    console.print(f"[bold]sweep of {count(num_runs, 'run')}[/], {where_run}")
    console.print(facts_grid((f"  {name}", text) for name, text in facts.items()))


def show_planned(console: Console, sweep: str, jobs: Mapping[str, tuple[Status | None, str]]) -> None:
    """Print a line per unfinished job: its status (None: never frozen) and what is done now. Count the others."""
    states = [CREATED if status is None else status.state for status, _ in jobs.values()]
    done = f"{states.count(FINISHED)} of {len(jobs)} runs are done"
    console.print(f"[bold]sweep {sweep}[/]: {done}", soft_wrap=True)
    if to_come := [what for state, (_, what) in zip(states, jobs.values(), strict=True) if state == CREATED]:
        what = "to start now" if to_come[0] else "left out"
        console.print(f"  {count(len(to_come), 'run')} not started yet, {what}")
    rows: list[list[Cell]] = []
    for name, (status, what) in jobs.items():
        if status is not None and status.state not in (CREATED, FINISHED):
            steps = f"{status.step}/{status.max_steps}" if status.max_steps is not None else ""
            state, _, _ = describe_state(status.state, status.reason).partition(" ")
            shown = (state, STATE_STYLE.get(status.state, ""))
            rows.append([f"  {name}", shown, steps, what or "stays as it is", in_one_line(status.reason or "")])
    if rows:
        console.print(plain_table(["  run", "state", "step", "now", "why it ended"], rows=rows, gap=1))


_MOST = 10
_BEST = "★"


@dataclass(frozen=True)
class TrialRow:
    """A trial of a search; `settings` have short keys, `values` one number per objective or none."""

    name: str
    settings: Mapping[str, str]
    values: tuple[float, ...]
    state: str
    is_best: bool


def show_search(console: Console, objectives: Sequence[str], facts: Mapping[str, str]) -> None:
    """Print the heading of a search."""
    aims = [f"less {text.removeprefix('-')}" if text.startswith("-") else f"more {text}" for text in objectives]
    console.print(Text.assemble(("search", "bold"), f" for {' and '.join(aims)}"))
    console.print(facts_grid((f"  {name}", text) for name, text in facts.items()))


def show_best_trials(console: Console, rows: Sequence[TrialRow], *, objectives: Sequence[str], again: str) -> None:
    """Print the best trials, best first, and the command `again`, which repeats the best one over several seeds."""
    done = [row for row in rows if row.values]
    if not done:
        console.print(f"no trial of {len(rows)} has a value", style="yellow")
        return
    sign = 1 if objectives[0].startswith("-") else -1
    best_first = sorted(done, key=lambda row: (not row.is_best, sign * row.values[0]))
    shown = best_first[: max(_MOST, sum(row.is_best for row in done) if len(objectives) > 1 else 0)]
    keys = list(shown[0].settings)
    table: list[list[Cell]] = []
    for row in shown:
        style = "" if row.is_best else "dim"
        name = row.name.partition(",")[0].removeprefix("trial=")
        figures = [*(f"{value:.4g}" for value in row.values), *(row.settings.get(key, "-") for key in keys)]
        table.append([(text, style) for text in (_BEST if row.is_best else "", name, *figures)])
    console.print(plain_table(["", "trial"], [*objectives, *keys], rows=table, gap=1))
    kind = "no trial beats these on every objective" if len(objectives) > 1 else "the best"
    states = ", ".join(f"{number} {state}" for state, number in Counter(row.state for row in rows).items())
    console.print(f"[dim]{_BEST} {kind}; {states}")
    console.print("each trial has one seed, so the best was also lucky; repeat it over seeds:")
    console.print(f"  {again}", markup=False, soft_wrap=True)
