"""Read data files; the table `FORMATS` has one row and one module per format.

We do not use the readers of `datasets`: they turn the text "2020-01-01" into a timestamp, the CSV cells `NA` and `None`
into nulls and `007` into 7, and count lines from 0 without naming the file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.data.formats import csv_table, json_rows, parquet
from rlhf_cli.data.formats import json_rows as json_lines
from rlhf_cli.data.formats import json_rows as json_list

Row = dict[str, object]


@dataclass(frozen=True)
class Format:
    """A file format. It is read row by row with `read`, or is a table with a `head` function.

    `read` yields `(place, row)`: the place as `file:line` for messages, the row as a dict. `head` returns `(columns,
    first rows, number of rows)` of several files; the `datasets` library reads the rest of a table under the format's
    name. Exactly one of the two is set. `blocks` is an optional faster `read` that yields many rows at a time.
    `suffixes` are the file suffixes. `is_untyped`: the types of cells are inferred, and `read` takes as a second
    argument the columns that stay text.
    """

    name: str
    suffixes: tuple[str, ...]
    read: Callable[..., Iterator[tuple[str, Row]]] | None = None
    head: Callable[[Sequence[Path], int], tuple[tuple[str, ...], list[Row], int]] | None = None
    blocks: Callable[[Path], Iterator[json_rows.Block]] | None = None
    is_untyped: bool = False


_ROWS = (
    Format("jsonl", (".jsonl", ".jsonl.gz"), read=json_lines.read_lines, blocks=json_rows.read_blocks),
    Format("json", (".json", ".json.gz"), read=json_list.read_list),
    Format("csv", (".csv", ".csv.gz"), read=csv_table.read, is_untyped=True),
    Format("parquet", (".parquet",), head=parquet.head),
)

FORMATS: dict[str, Format] = {row.name: row for row in _ROWS}
"""Map name -> format. To add a format, add a module here and a row above."""


def rows_of(format_name: str, path: Path, texts: Collection[str] = ()) -> Iterator[tuple[str, Row]]:
    """Yield `(place, row)` of a file in a format that is read row by row.

    `texts` are the columns that stay text in an untyped format.
    """
    of = FORMATS[format_name]
    assert of.read is not None, f"{format_name} is a table"
    yield from of.read(path, texts) if of.is_untyped else of.read(path)
