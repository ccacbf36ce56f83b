"""Runs as the rows of a table: what differs, and each reward at start and end."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from rlhf_cli.runs.compare import RunSummary, differences
from rlhf_cli.runs.metrics import TOTAL

_STATE_STYLE = {"finished": "green", "failed": "red", "killed": "red", "preempted": "yellow"}


def show_comparison(console: Console, runs: list[RunSummary]) -> None:
    """One row a run. Rewards are raw means (unweighted), `start > end`; the total is the weighted sum."""
    keys = differences(runs)
    names: dict[str, None] = {}
    for run in runs:
        names.update(dict.fromkeys(run.rewards))
    table = Table(header_style="bold", show_lines=False)
    table.add_column("run", overflow="fold")
    table.add_column("state")
    for key in keys:
        table.add_column(_short(key, keys), justify="right", overflow="fold")
    for name in names:
        table.add_column("total" if name == TOTAL else name, justify="right", no_wrap=True)
    for run in runs:
        style = _STATE_STYLE.get(run.status.state, "")
        cells = [run.folder.label, f"[{style}]{run.status.state}[/]" if style else run.status.state]
        cells += [str(run.settings.get(key, "-")) for key in keys]
        for name in names:
            span = run.rewards.get(name)
            cells.append(f"{span[0]:.3f} > {span[1]:.3f}" if span else "-")
        table.add_row(*cells)
    console.print(table)
    console.print("[dim]rewards: raw mean over the first and the last tenth of the log events; total: weighted sum")
    if not keys and len(runs) > 1:
        console.print("[dim]the configurations do not differ")


def _short(key: str, keys: list[str]) -> str:
    """The end of a dotted key, as much of it as tells it from the others."""
    parts = key.split(".")
    for length in range(1, len(parts)):
        short = ".".join(parts[-length:])
        if sum(other == short or other.endswith("." + short) for other in keys) == 1 and length >= min(2, len(parts)):
            return short
    return key
