"""Print whether a repeated run is equal, or the first step and metric that differ, and why."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rlhf_cli.expectations.first_difference import Difference
from rlhf_cli.expectations.same_again import SameAgain
from rlhf_cli.json_values import JsonValue

_SHOWN = 12
_OTHERS = 6


def show_same_again(console: Console, both: SameAgain) -> None:
    """Print the verdict, what was and was not compared, and possible causes of a difference."""
    logs = both.logs
    counted = f"{logs.num_numbers} numbers in {logs.num_events} log events"
    if both.is_equal:
        console.print(Text.assemble(("equal", "bold green"), f": {counted}, up to step {logs.last_step}"))
    elif logs.difference is not None:
        _show_difference(console, logs.difference, logs.equal_steps)
    else:
        said = f": {counted} are equal up to step {logs.last_step}, and the weights are not"
        console.print(Text.assemble(("differs", "bold red"), said))
    for part in both.weights:
        now = (
            "the same weights"
            if part.is_equal
            else f"other weights: sha256 {part.before[:_SHOWN]} -> {part.after[:_SHOWN]}"
        )
        console.print(Text(f"  {part.part}: {now}" + (f", sha256 {part.before[:_SHOWN]}" if part.is_equal else "")))
    if logs.of_the_clock:
        console.print(Text(f"  not compared, for they are times: {', '.join(logs.of_the_clock)}", style="dim"))
    _show_causes(console, both)


def _show_difference(console: Console, difference: Difference, equal_steps: int) -> None:
    was_is = f"was {_number(difference.before)}, is {_number(difference.after)}"
    size = "" if difference.size is None else f" (by {difference.size:.2g})"
    console.print(
        Text.assemble(
            ("differs", "bold red"),
            f" first at step {difference.step}: ",
            (difference.metric, "bold"),
            f" {was_is}{size}",
        )
    )
    if difference.others:
        more = len(difference.others) - _OTHERS
        names = ", ".join(difference.others[:_OTHERS]) + (f" and {more} more" if more > 0 else "")
        console.print(Text(f"  and at the same step {names}"))
    before = "nothing before that is equal" if not equal_steps else f"everything up to step {equal_steps} is equal"
    console.print(Text(f"  {before}"))


def _show_causes(console: Console, both: SameAgain) -> None:
    """Print possible causes of a difference. For equal runs, print the changes that made no difference."""
    if both.is_equal:
        for cause in both.causes:
            line = f"  another {cause.kind} made no difference: {cause.name} {cause.before} -> {cause.after}"
            console.print(Text(line, style="dim"))
        return
    console.print(Text("why, as far as is recorded", style="bold"))
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(3):
        table.add_column(overflow="fold")
    for cause in both.causes:
        table.add_row(Text(cause.kind, "yellow"), Text(cause.name), Text(f"{cause.before} -> {cause.after}"))
    for reason in both.unrepeatable:
        table.add_row(Text("by chance", "yellow"), Text(reason), "")
    if both.causes or both.unrepeatable:
        console.print(Padding(table, (0, 0, 0, 2)))
    else:
        known = "settings, data, reward code, starting model, versions, threads, processor: all as they were"
        console.print(Text(f"  nothing: {known}; what a reward reads beside its rows is not recorded"))


def _number(value: JsonValue) -> str:
    if value is None:
        return "null"
    return f"{value:.7g}" if isinstance(value, float) else str(value)
