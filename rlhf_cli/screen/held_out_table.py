"""Build the table of a policy's evaluations during training: totals with intervals, attempts and truncation."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from rlhf_cli.runs.evaluations import GREEDY, SAMPLED
from rlhf_cli.runs.metrics_file import Event, most_attempts

_MOST_ROWS = 6


def held_out(events: Sequence[Event], best_step: int | None, *, most: int = _MOST_ROWS) -> Table | None:
    """Return a table of the evaluations in the log events, or None if no policy evaluation was logged.

    `best_step` is the step whose checkpoint was kept as the best, or None.
    """
    evaluations = [event for event in events if f"eval_{GREEDY}/total" in event]
    if not evaluations:
        return None
    attempts = most_attempts(evaluations[-1])
    columns = {
        **{f"{part} total": f"eval_{part}/total" for part in (GREEDY, SAMPLED)},
        **{name.removeprefix("eval_").replace("/", " "): name for name in attempts},
        "truncated": f"eval_{SAMPLED}/truncated",
    }
    best = next((event for event in evaluations if event["step"] == best_step), None)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("held out", style="bold", no_wrap=True)
    for column, name in columns.items():
        table.add_column(Text(column, overflow="fold"), justify="right", no_wrap=name.endswith("/total"))
    for event in _some(evaluations, best, most):
        mark = " best" if event is best else ""
        table.add_row(f"step {event['step']}{mark}", *(_cell(event, name) for name in columns.values()))
    return table


def _some(evaluations: Sequence[Event], best: Event | None, most: int) -> Sequence[Event]:
    """Return the first, the last and the best evaluation, and others evenly spaced between them."""
    last = len(evaluations) - 1
    if last < most:
        return evaluations
    kept = {round(place * last / (most - 1)) for place in range(most)}
    return [event for place, event in enumerate(evaluations) if place in kept or event is best]


def _cell(event: Event, name: str) -> str:
    mean, low, high = (event.get(f"{name}{bound}") for bound in ("", "/low", "/high"))
    if mean is None:
        return "-"
    return f"{mean:.3f}" if low is None or high is None else f"{mean:.2f} \\[{low:.2f}, {high:.2f}]"
