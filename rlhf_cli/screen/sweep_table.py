"""Draw a running sweep: one line per job, as many as fit, and the total progress."""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group
from rich.table import Table
from rich.text import Text

from rlhf_cli.screen.one_line import cut_middle
from rlhf_cli.screen.time_spans import span

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
