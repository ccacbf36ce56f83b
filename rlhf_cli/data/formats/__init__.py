"""Read data files; the table `FORMATS` has one row per format.

We do not use the readers of `datasets`: they turn the text "2020-01-01" into a timestamp, the CSV cells `NA` and `None`
into nulls and `007` into 7, and count lines from 0 without naming the file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.data.formats import csv_table, json_rows, parquet

Row = dict[str, object]


@dataclass(frozen=True)
class Format:
    """A file format. It is read row by row with `read`, or is a table with a `head` function; the other one is None.

    `read` yields `(place, row)`: the place as `file:line` for messages, the row as a dict. `head` returns `(columns,
    first rows, number of rows)` of several files; the `datasets` library reads the rest of a table under the format's
    name. `is_untyped`: the types of cells are inferred, and `read` takes as a second argument the columns that stay
    text. `may_be_large`: `read_by_arrow` reads it faster.
    """

    name: str
    suffixes: tuple[str, ...]
    read: Callable[..., Iterator[tuple[str, Row]]] | None = None
    head: Callable[[Sequence[Path], int], tuple[tuple[str, ...], list[Row], int]] | None = None
    is_untyped: bool = False
    may_be_large: bool = False


_ROWS = (
    Format("jsonl", (".jsonl", ".jsonl.gz"), read=json_rows.read_lines, may_be_large=True),
    Format("json", (".json", ".json.gz"), read=json_rows.read_list),
    Format("csv", (".csv", ".csv.gz"), read=csv_table.read, is_untyped=True),
    Format("parquet", (".parquet",), head=parquet.head),
)

FORMATS: dict[str, Format] = {row.name: row for row in _ROWS}
"""Map name -> format. To add a format, add a module here and a row above."""

SUFFIXES = {suffix: row.name for row in _ROWS for suffix in row.suffixes}
"""Map a file suffix to its format."""


def rows_of(format_name: str, path: Path, texts: Collection[str] = ()) -> Iterator[tuple[str, Row]]:
    """Yield `(place, row)` of a file in a format that is read row by row.

    `texts` are the columns that stay text in an untyped format.
    """
    of = FORMATS[format_name]
    assert of.read is not None, f"{format_name} is a table"
    yield from of.read(path, texts) if of.is_untyped else of.read(path)
