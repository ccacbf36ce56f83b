"""Draw a table that is too wide for the screen as several, one below another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlhf_cli.display.tables import GAP, Cell, as_text


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


def show_blocks(console: Console, columns: Sequence[BlockColumn], styles: Sequence[str] = ()) -> None:
    """Print columns as several tables below one another if they do not fit the width.

    Each table repeats the head columns. `styles` has one style per row; without it rows are plain.
    """
    head = [column for column in columns if column.is_head]
    blocks: list[list[BlockColumn]] = [[]]
    room = console.width - sum(column.width + GAP for column in head)
    for column in (one for one in columns if not one.is_head):
        if blocks[-1] and sum(one.width + GAP for one in blocks[-1]) + column.width > room:
            blocks.append([])
        blocks[-1].append(column)
    for number, block in enumerate(blocks):
        shown = [*head, *block]
        table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
        for one in shown:
            table.add_column(Text(one.title), justify="right" if one.is_number else "left", overflow="fold")
        for row in range(len(shown[0].cells)):
            table.add_row(*(as_text(one.cells[row]) for one in shown), style=styles[row] if styles else None)
        if number:
            console.print()
        console.print(table)
