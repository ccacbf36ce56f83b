"""Reads files of rows, one module a format and one row a format in the table `FORMATS`.

Our own readers rather than those of `datasets`: those turn the text "2020-01-01" into a timestamp, the CSV cells `NA`
and `None` into nulls and `007` into 7, and count lines from 0 without naming the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.data.formats import csv_table, json_lines, json_list, parquet

Row = dict[str, object]


@dataclass(frozen=True)
class Format:
    """A kind of file. It is read row by row with `read`, or is a table whose first rows `head` gives.

    `read` yields `(place, row)`: the place as `file:line` for messages, the row as a dict. `head` returns
    `(columns, first rows, number of rows)` of several files; the rest of a table is read by the `datasets` library
    under the format's name. Exactly one of the two is there. `suffixes` are the endings of such files.
    """

    name: str
    suffixes: tuple[str, ...]
    read: Callable[[Path], Iterator[tuple[str, Row]]] | None = None
    head: Callable[[Sequence[Path], int], tuple[tuple[str, ...], list[Row], int]] | None = None


_ROWS = (
    Format("jsonl", (".jsonl", ".jsonl.gz"), read=json_lines.read),
    Format("json", (".json", ".json.gz"), read=json_list.read),
    Format("csv", (".csv", ".csv.gz"), read=csv_table.read),
    Format("parquet", (".parquet",), head=parquet.head),
)

FORMATS: dict[str, Format] = {row.name: row for row in _ROWS}
"""Name -> format. A new format is a module here and a row above."""


def rows_of(format_name: str, path: Path) -> Iterator[tuple[str, Row]]:
    """Yield `(place, row)` of a file of a format that is read row by row."""
    read = FORMATS[format_name].read
    assert read is not None, f"{format_name} is a table"
    yield from read(path)
