"""Print a sweep or a search: plan and result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from rlhf_cli.display.tables import Cell, facts_grid, plain_table
from rlhf_cli.errors import in_one_line
from rlhf_cli.plan.batches import count
from rlhf_cli.runs.run_status import CREATED, FINISHED, RunState, Status, describe_state

STATE_STYLE: dict[str, str] = {
    **dict.fromkeys((RunState.RUNNING, RunState.STARTING), "cyan"),
    **dict.fromkeys((RunState.FAILED, RunState.KILLED, RunState.UNREADABLE), "red"),
    RunState.FINISHED: "green",
    RunState.PREEMPTED: "yellow",
    RunState.PRUNED: "dim",
}


def show_sweep(console: Console, num_runs: int, where_run: str, facts: Mapping[str, str]) -> None:
    """Print the heading of a sweep. `where_run` says how the runs are run (`2 at a time`)."""
    console.print(f"[bold]sweep of {count(num_runs, 'run')}[/], {where_run}", highlight=False)
    console.print(facts_grid((f"  {name}", text) for name, text in facts.items()))


def show_planned(console: Console, sweep: str, jobs: Mapping[str, tuple[Status | None, str]]) -> None:
    """Print one line per unfinished job of `sweep`, and count the others.

    `jobs` maps a name to its status, None if it was never frozen, and to what is done with it now, '' for nothing.
    """
    states = [CREATED if status is None else status.state for status, _ in jobs.values()]
    done = f"{states.count(FINISHED)} of {len(jobs)} runs are done"
    console.print(f"[bold]sweep {sweep}[/]: {done}", highlight=False, soft_wrap=True)
    if to_come := [what for state, (_, what) in zip(states, jobs.values(), strict=True) if state == CREATED]:
        what = "start now" if to_come[0] else "stay as they are"
        console.print(f"  {count(len(to_come), 'run')} not started yet: {what}", highlight=False)
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
    """A trial of a search: its settings (short key -> value) and its value for each objective, empty if it has none.

    `is_best` marks the best trial, or all trials on the Pareto front.
    """

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
    console.print(f"[dim]{_BEST} {kind}; {states}", highlight=False)
    console.print("each trial has one seed, so the best was also lucky; repeat it over seeds:", highlight=False)
    console.print(f"  {again}", markup=False, highlight=False, soft_wrap=True)
