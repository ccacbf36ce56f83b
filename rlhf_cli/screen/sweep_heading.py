"""Print the heading of a sweep: the number of runs, the swept keys, the time and the folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlhf_cli.screen.time_spans import span


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
