"""Draw tables in one style: no frame, headers that are never cut, numbers on the right.

A table that is too wide for the screen is split into several, one below another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlhf_cli.runs.run_status import RunState

Cell = str | tuple[str, str] | Text
"""The content of a cell: a plain text, (text, style), or a Text. Markup in a plain text is shown as it is."""
GAP = 2
STATE_STYLE: dict[str, str] = {
    **dict.fromkeys((RunState.RUNNING, RunState.STARTING), "cyan"),
    **dict.fromkeys((RunState.FAILED, RunState.KILLED, RunState.UNREADABLE), "red"),
    RunState.FINISHED: "green",
    RunState.PREEMPTED: "yellow",
    RunState.PRUNED: "dim",
}


def as_text(cell: Cell) -> Text:
    """Return a cell as rich draws it."""
    if isinstance(cell, Text):
        return cell
    return Text(*cell) if isinstance(cell, tuple) else Text(cell)


def plain_table(
    texts: Sequence[str],
    numbers: Sequence[str] = (),
    after: Sequence[str] = (),
    *,
    rows: Iterable[Sequence[Cell]] = (),
    head: str = "bold",
    gap: int = GAP,
    indent: int = 0,
) -> Table:
    """Return a table whose columns are `texts` (on the left), `numbers` (on the right), then `after` (on the left).

    A column without enough room is folded, header included. If all headers are empty, the header row is left out.
    """
    heads = [*texts, *numbers, *after]
    table = Table(box=None, padding=(0, gap, 0, indent), header_style=head, show_header=any(heads))
    for place, name in enumerate(heads):
        is_number = len(texts) <= place < len(texts) + len(numbers)
        table.add_column(Text(name), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(as_text, row))
    return table


def facts_grid(rows: Iterable[tuple[Cell, Cell]], *, style: str = "bold") -> Table:
    """Return names and their descriptions in two columns; a long text is folded within its column."""
    grid = Table.grid(padding=(0, GAP, 0, 0))
    grid.add_column(style=style, no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in rows:
        grid.add_row(as_text(name), as_text(text))
    return grid


@dataclass(frozen=True)
class BlockColumn:
    """A column of `show_blocks` with one cell per row. A head column is repeated in every block."""

    title: str
    cells: Sequence[Cell]
    is_head: bool = False
    is_number: bool = True

    @property
    def width(self) -> int:
        """Return the width of the widest text, in terminal cells."""
        return max(cell_len(self.title), *(as_text(cell).cell_len for cell in self.cells), 0)


def width_of(columns: Sequence[BlockColumn]) -> int:
    """Return the width of columns beside one another."""
    return sum(column.width + GAP for column in columns) - GAP


def show_blocks(console: Console, columns: Sequence[BlockColumn], styles: Sequence[str] = ()) -> None:
    """Print columns as several tables below one another if they do not fit the width.

    Each table repeats the head columns. `styles` has one style per row; without it rows are plain.
    """
    head = [column for column in columns if column.is_head]
    blocks: list[list[BlockColumn]] = [[]]
    room = console.width - width_of(head) - GAP
    for column in (column for column in columns if not column.is_head):
        if blocks[-1] and width_of([*blocks[-1], column]) > room:
            blocks.append([])
        blocks[-1].append(column)
    for number, block in enumerate(blocks):
        shown = [*head, *block]
        table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
        for column in shown:
            table.add_column(Text(column.title), justify="right" if column.is_number else "left", overflow="fold")
        for row in range(len(shown[0].cells)):
            table.add_row(*(as_text(column.cells[row]) for column in shown), style=styles[row] if styles else None)
        if number:
            console.print()
        console.print(table)
