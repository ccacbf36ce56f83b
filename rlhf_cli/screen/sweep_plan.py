"""Print the plan for each job of a resumed sweep, and why the job is not done yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

_STATE_STYLE = {"running": "cyan", "failed": "red", "killed": "red", "preempted": "yellow", "stopped": "yellow"}
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
        state = Text(job.state, _STATE_STYLE.get(job.state, ""))
        table.add_row(Text(f"  {job.name}"), state, steps, job.what or "is left as it is", Text(job.reason))
    console.print(table)
