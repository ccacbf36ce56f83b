"""Read CSV with a header line.

A column is integer, number or true/false only if every filled cell of it is, in canonical form (`007` and `1,5` stay
text, and so do `NA` and `None`, which are possible answers). An empty cell is a null. A column to be read as text
always stays text: `7` is an answer like `seven`, and `1.50` is not `1.5`.
"""

from __future__ import annotations

import csv
import re
import shlex
from collections.abc import Collection, Iterator
from pathlib import Path

from rlhf_cli.data.formats.decoded_text import numbered_lines, shorten
from rlhf_cli.data.source import BOOL, INTEGER, NULL, NUMBER, TEXT, Kind, merge
from rlhf_cli.errors import DataError, Prose

_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")  # 18 digits fit an int64
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")

_TO_COMMAS = "python -c \"import csv, sys; csv.writer(sys.stdout).writerows(csv.reader(sys.stdin, delimiter='{}'))\""
"""The command that converts a table with another separator to commas."""

# A completion in a cell can exceed the csv module's default of 128 KiB.
csv.field_size_limit(1 << 30)


def read(path: Path, texts: Collection[str] = ()) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the rows with the `file:line` of their last line; the columns in `texts` hold text.

    Read the file twice, first to infer the column types. Raise DataError on a row with more or fewer cells than the
    header, and on an empty or repeated column name.
    """
    kinds: dict[str, Kind] = {}
    for _, cells in _cells(path):
        for column, cell in cells.items():
            kind = TEXT if column in texts else merge(kinds.get(column, NULL), _kind_of_cell(cell))
            kinds[column] = kind if kind in (NULL, BOOL, INTEGER, NUMBER) else TEXT
    for where, cells in _cells(path):
        yield where, {column: _convert(cell, kinds[column]) for column, cell in cells.items()}


def _cells(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    reader = csv.reader((line for _, line in numbered_lines(path)), strict=True)
    header: list[str] = []
    try:
        for row in reader:
            where = f"{path}:{reader.line_num}"
            if not row:  # a blank line
                continue
            if not header:
                header = _checked_header(row, where)
            elif len(row) != len(header):
                raise DataError(
                    f"{len(row)} cells in a table of {len(header)} columns",
                    where=where,
                    got=shorten(",".join(row)),
                    expected=", ".join(header),
                    hint=Prose("a comma or a line break inside a cell needs quotes around the cell"),
                )
            else:
                yield where, dict(zip(header, row, strict=True))
    except csv.Error as error:
        hint = Prose('a quote inside a quoted cell is written twice: ""')
        raise DataError(f"malformed CSV: {error}", where=f"{path}:{reader.line_num}", hint=hint) from None


def _checked_header(header: list[str], where: str) -> list[str]:
    other = next((sign for sign in ";\t|" if sign in header[0]), None) if len(header) == 1 else None
    if other is not None:
        file, separator = where.rpartition(":")[0], {"\t": r"\t"}.get(other, other)
        read = f"gunzip -c {shlex.quote(file)} |" if file.endswith(".gz") else f"< {shlex.quote(file)}"
        written = shlex.quote(f"{Path(file).name.partition('.')[0]}-commas.csv")
        raise DataError(
            f"the columns are separated by {other!r}, not by commas",
            where=where,
            got=shorten(header[0]),
            expected="CSV with commas; numbers with a decimal point",
            hint=f"{read} {_TO_COMMAS.format(separator)} > {written}",
        )
    for position, column in enumerate(header):
        if not column.strip():
            raise DataError(f"column {position + 1} has no name", where=where, got=shorten(",".join(header)))
        if column in header[:position]:
            raise DataError(f"two columns are named {column!r}", where=where, got=shorten(",".join(header)))
    return header


def _kind_of_cell(cell: str) -> Kind:
    if cell == "":
        return NULL
    if cell.lower() in ("true", "false"):
        return BOOL
    if _INTEGER.fullmatch(cell):
        return INTEGER
    return NUMBER if _NUMBER.fullmatch(cell) else TEXT


def _convert(cell: str, kind: Kind) -> object:
    if cell == "":
        return None
    if kind == BOOL:
        return cell.lower() == "true"
    if kind == INTEGER:
        return int(cell)
    return float(cell) if kind == NUMBER else cell
