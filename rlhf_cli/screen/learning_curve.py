"""Build the table for a run without rewards: its loss and TRL's other metrics at the start and the end."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from rlhf_cli.runs.metrics_file import Event
from rlhf_cli.runs.training_measures import measures


def learning(events: Sequence[Event]) -> Table | None:
    """Return the start and end of each measure on training and held-out rows, or None if there are no measures."""
    curves = measures(events)
    if not curves:
        return None
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("measure", style="bold")
    for column in ("start", "end", "change"):
        table.add_column(column, justify="right")
    for one in curves:
        change = (one.end - one.start) * one.sign
        colour = "green" if change > 0 else "red" if change < 0 else "dim"
        table.add_row(one.label, f"{one.start:.3f}", f"{one.end:.3f}", f"[{colour}]{one.end - one.start:+.3f}")
    return table
