"""Print the result of `rlhf doctor`: one row per condition, with a fix below those that are not met."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlhf_cli.doctor.condition import Condition, State, can_train

_STYLE = {State.OK: "green", State.WARN: "yellow", State.MISSING: "dim", State.UNFIT: "red"}
_NEEDED = "bold red"


def show_conditions(console: Console, conditions: Sequence[Condition]) -> None:
    """Print the conditions by area, and whether training is possible."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    area = ""
    for condition in conditions:
        if condition.area != area:
            area = condition.area
            table.add_row(Text(area, "bold"), "", "")
        style = _NEEDED if condition.prevents_training else _STYLE[condition.state]
        found = Text(condition.found)
        if condition.fix is not None:
            found.append("\n" if condition.found else "").append(condition.fix, "cyan")
        table.add_row(Text(f"  {condition.name}"), Text(condition.state, style), found)
    console.print(table)
    wrong = [condition.name for condition in conditions if condition.prevents_training]
    if can_train(conditions):
        console.print("[green]ok[/], rlhf can train here; what is missing is needed for what stands beside it")
    else:
        console.print(Text.assemble(("rlhf cannot train here", "bold red"), f": {', '.join(wrong)}"))
