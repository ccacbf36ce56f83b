"""Print a sweep or a search: plan, progress, result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, Group
from rich.text import Text

from rlhf_cli.display.tables import Cell, facts_grid, plain_table
from rlhf_cli.display.terminal import cut_middle, span, sparkline
from rlhf_cli.plan.batches import count

STATE_STYLE = {
    "running": "cyan",
    "starting": "cyan",
    "finished": "green",
    "failed": "red",
    "killed": "red",
    "unreadable": "red",
    "preempted": "yellow",
    "stopped": "yellow",
}
WAITING, STARTING = "waiting", "starting"
PRUNED = "pruned"
"""State of a job that the search stopped because others did better. It counts as done."""
_LEAST_OF_A_NAME = 12
_AROUND = 4
"""Lines other than jobs: the head, the totals, one about hidden jobs, and one below."""


@dataclass(frozen=True)
class JobRow:
    """The current state of a sweep's job. `values` are those of the watched metric; times are in seconds.

    `ended_at` orders the jobs that have ended (on any clock); it is None for the others.
    """

    name: str
    state: str
    step: int = 0
    max_steps: int | None = None
    values: tuple[float, ...] = ()
    left_s: float | None = None
    ended_at: float | None = None


@dataclass(frozen=True)
class SweepRows:
    """All jobs of a sweep in order, the watched metric, and the remaining time.

    `num_to_come` is the number of search trials that are not created yet.
    """

    rows: Sequence[JobRow]
    metric: str
    left_s: float | None
    elapsed_s: float
    num_to_come: int = 0


def sweep_table(sweep: SweepRows, *, height: int, width: int) -> Group:
    """Return the table of a sweep in at most `height` lines.

    Running jobs are preferred, then the latest to end, then waiting ones. A name that does not fit into `width` columns
    loses its middle, because names differ at both ends.
    """
    shown = shown_rows(sweep.rows, max(1, height - _AROUND))
    metric = sweep.metric.removeprefix("rewards/").removesuffix("/mean")  # a reward by its name
    heads = ("state", "step", metric, "", "left")
    cells = [
        (
            row.state,
            f"{row.step}/{row.max_steps}" if row.max_steps is not None else "",
            sparkline(row.values),
            f"{row.values[-1]:.3f}" if row.values else "",
            span(row.left_s) if row.state == "running" else "",
        )
        for row in shown
    ]
    used = sum(max(map(len, column)) + 1 for column in zip(heads, *cells, strict=True))
    most = max(_LEAST_OF_A_NAME, width - used - 1)
    table = plain_table(["run"], gap=1)
    for head, is_number in zip(heads, (False, True, False, True, True), strict=True):
        table.add_column(Text(head), justify="right" if is_number else "left", no_wrap=True)
    for row, (state, *figures) in zip(shown, cells, strict=True):
        colour = STATE_STYLE.get(state, "dim")
        table.add_row(Text(cut_middle(row.name, most)), Text(state, colour), *map(Text, figures))
    lines = {totals(sweep): "bold"}
    if hidden := Counter(row.state for row in sweep.rows if row not in shown):
        lines = {"not shown: " + ", ".join(f"{count} {state}" for state, count in hidden.items()): "dim", **lines}
    return Group(table, *(Text(line, style, overflow="ellipsis", no_wrap=True) for line, style in lines.items()))


def totals(sweep: SweepRows) -> str:
    """Return the progress of a sweep in one line."""
    count = Counter(row.state for row in sweep.rows)
    parts = [f"{count['finished'] + count[PRUNED]} of {len(sweep.rows) + sweep.num_to_come} done"]
    counted = {
        "of them pruned": count[PRUNED],
        "failed": count["failed"] + count["killed"],
        "stopped": count["preempted"],
        "waiting": count[WAITING],
    }
    parts += [f"{number} {what}" for what, number in counted.items() if number]
    left = f"about {span(sweep.left_s)} left" if sweep.left_s is not None else "time left unknown"
    return f"{', '.join(parts)}; {span(sweep.elapsed_s)} so far, {left}"


def shown_rows(rows: Sequence[JobRow], most: int) -> list[JobRow]:
    """Return at most `most` rows in their order, preferring running jobs, then the latest to end, then waiting ones."""

    def importance(row: JobRow) -> tuple[int, float]:
        if row.ended_at is not None:
            return 1, -row.ended_at
        return (2, rows.index(row)) if row.state == WAITING else (0, 0.0)

    chosen = sorted(rows, key=importance)[:most]
    return [row for row in rows if row in chosen]


def show_sweep(console: Console, num_runs: int, where_run: str, facts: Mapping[str, str]) -> None:
    """Print the heading of a sweep. `where_run` says how the runs are run (`2 at a time`)."""
    console.print(f"[bold]sweep of {count(num_runs, 'run')}[/], {where_run}", highlight=False)
    console.print(facts_grid((f"  {name}", text) for name, text in facts.items()))


@dataclass(frozen=True)
class PlannedJob:
    """The state of a job when its sweep is resumed.

    `what` is the planned action ('' for none). `reason` is why the job had ended ('' if unknown).
    """

    name: str
    state: str
    step: int
    max_steps: int | None
    what: str
    reason: str


def show_planned(console: Console, sweep: str, jobs: Sequence[PlannedJob]) -> None:
    """Print one line per unfinished job of `sweep`, and count the others."""
    done = sum(job.state == "finished" for job in jobs)
    console.print(f"[bold]sweep {sweep}[/]: {done} of {len(jobs)} runs are done", highlight=False, soft_wrap=True)
    to_come = [job for job in jobs if job.state in ("created", "missing")]
    begun = [job for job in jobs if job.state != "finished" and job not in to_come]
    if to_come:
        what = "start now" if to_come[0].what else "stay as they are"
        console.print(f"  {count(len(to_come), 'run')} not started yet: {what}", highlight=False)
    if not begun:
        return
    rows: list[list[Cell]] = []
    for job in begun:
        steps = f"{job.step}/{job.max_steps}" if job.max_steps is not None else ""
        state = (job.state, STATE_STYLE.get(job.state, ""))
        rows.append([f"  {job.name}", state, steps, job.what or "stays as it is", job.reason])
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
