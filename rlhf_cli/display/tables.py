"""Draw tables in one style: no frame, headers that are never cut, numbers on the right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

Cell = str | tuple[str, str] | Text
"""The content of a cell: a plain text, (text, style), or a Text. Markup in a plain text is shown as it is."""
GAP = 2


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

    A column that has no room is folded, header included. Without any header, none is drawn.
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
