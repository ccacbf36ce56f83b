"""Print the state of runs, one row per run."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlhf_cli.errors import in_one_line
from rlhf_cli.runs.run_state import Overview, RunState
from rlhf_cli.runs.run_status import told_state
from rlhf_cli.screen.time_spans import span

_REASON = "reason"
_STATE_STYLE = {
    "running": "cyan",
    "finished": "green",
    "failed": "red",
    "killed": "red",
    "unreadable": "red",
    "preempted": "yellow",
}


def show_overview(console: Console, overview: Overview) -> None:
    """Print one row per run without the empty columns, and why Slurm could not be queried."""
    rows = overview.rows
    columns = {
        "run": [Text(row.run) for row in rows],
        "state": [Text(_state(row), _STATE_STYLE.get(row.state, "")) for row in rows],
        "step": [Text(_steps(row)) for row in rows],
        "s/step": [Text("" if row.s_per_step is None else f"{row.s_per_step:.2f}") for row in rows],
        "left": [Text(span(row.time_left_s)) for row in rows],
        "logged": [Text("" if row.log_age_s is None else f"{span(row.log_age_s)} ago") for row in rows],
        "saved": [Text((row.last_checkpoint or "").replace("checkpoint-", "step ")) for row in rows],
        "job": [Text(" ".join(part for part in (row.job_id, row.slurm_state) if part)) for row in rows],
        _REASON: [Text(in_one_line(row.reason or "")) for row in rows],
    }
    shown = {name: cells for name, cells in columns.items() if any(cell.plain for cell in cells)}
    if below := _REASON in shown and sum(map(_width, shown.items())) > console.width:
        shown = {name: cells for name, cells in shown.items() if name != _REASON}  # it would wrap run names
    table = Table(header_style="bold", padding=(0, 1, 0, 0), box=None)
    for name in shown:
        is_number = name in ("step", "s/step", "left", "logged", "saved")
        is_long = name in ("run", _REASON)
        table.add_column(name, justify="right" if is_number else "left", no_wrap=not is_long, overflow="fold")
    for cells in zip(*shown.values(), strict=True):
        table.add_row(*cells)
    console.print(table)
    for row, reason in zip(rows, columns[_REASON], strict=True) if below else ():
        if reason.plain:
            console.print(Text.assemble((row.run, "bold"), ": ", reason))
    if overview.notice is not None:
        # Later lines of squeue's message only follow from the first.
        first, _, _ = overview.notice.partition("\n")
        console.print(f"[yellow]Slurm was not asked:[/] {first}", highlight=False)


def _width(column: tuple[str, list[Text]]) -> int:
    name, cells = column
    return 1 + max(cell_len(name), *(cell.cell_len for cell in cells))


def _state(row: RunState) -> str:
    """Return the first word of the state; the reason has its own column."""
    return told_state(row.state, row.reason).partition(" ")[0]


def _steps(row: RunState) -> str:
    return f"{row.step}/{row.max_steps}" if row.max_steps is not None else str(row.step or "")
