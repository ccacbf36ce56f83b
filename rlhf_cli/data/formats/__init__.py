"""Reads files of rows, one module a format.

A reader yields `(place, row)`: the place as `file:line` for messages, the row as a dict.

Our own readers rather than those of `datasets`: those turn the text "2020-01-01" into a timestamp, the CSV cells `NA`
and `None` into nulls and `007` into 7, and count lines from 0 without naming the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from rlhf_cli.data.formats import csv_table, json_lines, json_list

Row = dict[str, object]

READERS: dict[str, Callable[[Path], Iterator[tuple[str, Row]]]] = {
    "jsonl": json_lines.read,
    "json": json_list.read,
    "csv": csv_table.read,
}
