"""Print a sweep or a search: plan, progress, result."""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from rlhf_cli.display.terminal import cut_middle, span

_BARS = "▁▂▃▄▅▆▇█"
_SPARKS = 10
_STATE_STYLE = {
    "running": "cyan",
    "starting": "cyan",
    "finished": "green",
    "failed": "red",
    "killed": "red",
    "preempted": "yellow",
}
WAITING, STARTING = "waiting", "starting"
PRUNED = "pruned"
"""State of a job that the search stopped because others did better. It counts as done."""
_LEAST_OF_A_NAME = 12
_REWARD = re.compile(r"^rewards/(.+)/mean$")
"""A reward component is shown by its short name, any other metric by its full name."""
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

    def count(self, *states: str) -> int:
        """Return how many jobs are in one of these states."""
        return sum(row.state in states for row in self.rows)


def sweep_table(sweep: SweepRows, *, height: int, width: int) -> Group:
    """Return the table of a sweep in at most `height` lines.

    Running jobs are preferred, then the latest to end, then waiting ones. A name that does not fit into `width` columns
    loses its middle, because names differ at both ends.
    """
    shown = shown_rows(sweep.rows, max(1, height - _AROUND))
    cells = [_cells(row) for row in shown]
    heads = ("state", "step", _REWARD.sub(r"\1", sweep.metric), "", "left")
    used = sum(max(map(len, column)) + 1 for column in zip(heads, *cells, strict=True))
    table = Table(header_style="bold", padding=(0, 1, 0, 0), box=None, expand=False)
    table.add_column("run", no_wrap=True)
    for head, justify in zip(heads, ("left", "right", "left", "right", "right"), strict=True):
        table.add_column(Text(head), justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for row, (state, *figures) in zip(shown, cells, strict=True):
        name = cut_middle(row.name, max(_LEAST_OF_A_NAME, width - used - 1))
        table.add_row(Text(name), Text(state, _STATE_STYLE.get(state, "dim")), *map(Text, figures))
    parts: list[Table | Text] = [table]
    if len(shown) < len(sweep.rows):
        parts.append(Text(_not_shown(sweep.rows, shown), style="dim", overflow="ellipsis", no_wrap=True))
    parts.append(Text(totals(sweep), style="bold", overflow="ellipsis", no_wrap=True))
    return Group(*parts)


def _cells(row: JobRow) -> tuple[str, ...]:
    """Return the cells after a job's name."""
    return (
        row.state,
        f"{row.step}/{row.max_steps}" if row.max_steps is not None else "",
        sparkline(row.values),
        f"{row.values[-1]:.3f}" if row.values else "",
        span(row.left_s) if row.state == "running" else "",
    )


def totals(sweep: SweepRows) -> str:
    """Return the progress of a sweep in one line."""
    failed, stopped = sweep.count("failed", "killed"), sweep.count("preempted")
    parts = [f"{sweep.count('finished', PRUNED)} of {len(sweep.rows) + sweep.num_to_come} done"]
    parts += [f"{pruned} of them pruned"] if (pruned := sweep.count(PRUNED)) else []
    parts += [f"{failed} failed"] if failed else []
    parts += [f"{stopped} stopped"] if stopped else []
    parts += [f"{waiting} waiting"] if (waiting := sweep.count(WAITING)) else []
    left = f"about {span(sweep.left_s)} left" if sweep.left_s is not None else "time left not known yet"
    return f"{', '.join(parts)}; {span(sweep.elapsed_s)} so far, {left}"


def shown_rows(rows: Sequence[JobRow], most: int) -> list[JobRow]:
    """Return at most `most` rows in their order, preferring running jobs, then the latest to end, then waiting ones."""

    def importance(row: JobRow) -> tuple[int, float]:
        if row.ended_at is not None:
            return 1, -row.ended_at
        return (2, rows.index(row)) if row.state == WAITING else (0, 0.0)

    chosen = sorted(rows, key=importance)[:most]
    return [row for row in rows if row in chosen]


def sparkline(values: Sequence[float], width: int = _SPARKS) -> str:
    """Return a curve of at most `width` characters, scaled from the minimum to the maximum of the values."""
    if not values:
        return ""
    columns = min(width, len(values))
    edges = [place * len(values) // columns for place in range(columns + 1)]
    means = [statistics.fmean(values[start:end]) for start, end in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    if high == low:
        return _BARS[len(_BARS) // 2 - 1] * columns
    return "".join(_BARS[min(len(_BARS) - 1, int((value - low) / (high - low) * len(_BARS)))] for value in means)


def _not_shown(rows: Sequence[JobRow], shown: Sequence[JobRow]) -> str:
    hidden: dict[str, int] = {}
    for row in rows:
        if row not in shown:
            hidden[row.state] = hidden.get(row.state, 0) + 1
    return "not shown: " + ", ".join(f"{count} {state}" for state, count in hidden.items())


def show_sweep(
    console: Console,
    num_runs: int,
    swept: Mapping[str, Sequence[str]],
    *,
    where_run: str,
    time_s: float | None,
    says_so: str,
    folder: str,
) -> None:
    """Print the heading of a sweep.

    `swept` maps key -> values; `where_run` says how the runs are run (`2 at a time`); `time_s` is the estimated time
    for all runs, or None if unknown; `says_so` names the source of the estimate.
    """
    console.print(f"[bold]sweep of {num_runs} {'run' if num_runs == 1 else 'runs'}[/], {where_run}", highlight=False)
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    for key, values in swept.items():
        facts.add_row(f"  {key}", Text(", ".join(values)))
    known = f"about {span(time_s)}, {says_so}" if time_s is not None else says_so
    facts.add_row("  time", Text(known))
    facts.add_row("  folder", Text(folder, overflow="fold"))
    console.print(facts)


_PLAN_STATE_STYLE = {"running": "cyan", "failed": "red", "killed": "red", "preempted": "yellow", "stopped": "yellow"}
_FINISHED, _NEVER_BEGUN = "finished", ("created", "missing")


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
    done = sum(job.state == _FINISHED for job in jobs)
    console.print(f"[bold]sweep {sweep}[/]: {done} of {len(jobs)} runs are done", highlight=False, soft_wrap=True)
    to_come = [job for job in jobs if job.state in _NEVER_BEGUN]
    begun = [job for job in jobs if job.state != _FINISHED and job not in to_come]
    if to_come:
        what = "begin now" if to_come[0].what else "are left as they are"
        console.print(f"  {len(to_come)} have never begun, and {what}", highlight=False)
    if not begun:
        return
    table = Table(header_style="bold", padding=(0, 1, 0, 0), box=None)
    for name in ("  run", "state", "step", "now"):
        table.add_column(name, no_wrap=True, overflow="ellipsis", justify="right" if name == "step" else "left")
    table.add_column("why it is not done", overflow="fold")
    for job in begun:
        steps = f"{job.step}/{job.max_steps}" if job.max_steps is not None else ""
        state = Text(job.state, _PLAN_STATE_STYLE.get(job.state, ""))
        table.add_row(Text(f"  {job.name}"), state, steps, job.what or "is left as it is", Text(job.reason))
    console.print(table)


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


def show_search(
    console: Console, *, objectives: Sequence[str], space: Mapping[str, str], how: str, folder: str
) -> None:
    """Print the heading of a search. `space` maps key -> possible values; `how` describes the sampler and pruner."""
    aims = [f"less {text.removeprefix('-')}" if text.startswith("-") else f"more {text}" for text in objectives]
    console.print(Text.assemble(("search", "bold"), f" for {' and '.join(aims)}"))
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    for key, may_be in space.items():
        facts.add_row(Text(f"  {key}"), Text(may_be))
    facts.add_row("  trials", Text(how))
    facts.add_row("  folder", Text(folder, overflow="fold"))
    console.print(facts)


def show_found(console: Console, rows: Sequence[TrialRow], *, objectives: Sequence[str], again: str) -> None:
    """Print the best trials, best first, and the command `again`, which repeats the best one over several seeds."""
    done = [row for row in rows if row.values]
    if not done:
        console.print(f"none of {len(rows)} trials came to a value", style="yellow")
        return
    less = [text.startswith("-") for text in objectives]

    def rank(row: TrialRow) -> tuple[bool, float]:
        return not row.is_best, row.values[0] if less[0] else -row.values[0]

    shown = sorted(done, key=rank)[: max(_MOST, sum(row.is_best for row in done) if len(objectives) > 1 else 0)]
    keys = list(shown[0].settings)
    table = Table(header_style="bold", padding=(0, 1, 0, 0), box=None)
    table.add_column("")
    table.add_column("trial", no_wrap=True)
    for objective in objectives:
        table.add_column(Text(objective, overflow="fold"), justify="right")
    for key in keys:
        table.add_column(Text(key, overflow="fold"), justify="right")
    for row in shown:
        cells = [Text(f"{value:.4g}") for value in row.values]
        settings = [Text(row.settings.get(key, "-")) for key in keys]
        name = Text(row.name.partition(",")[0].removeprefix("trial="))
        table.add_row(_BEST if row.is_best else "", name, *cells, *settings, style=None if row.is_best else "dim")
    console.print(table)
    kind = "nothing was better in all of these at once" if len(objectives) > 1 else "the best"
    counts = ", ".join(f"{count} {state}" for state, count in _counts(rows).items())
    console.print(f"[dim]{_BEST} {kind}; {counts}", highlight=False)
    console.print("one seed each, and the best of many is also the luckiest; over seeds:", highlight=False)
    console.print(f"  {again}", markup=False, highlight=False, soft_wrap=True)


def _counts(rows: Sequence[TrialRow]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.state] = counts.get(row.state, 0) + 1
    return counts
