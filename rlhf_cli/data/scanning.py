"""Read a text table to its end and return the column types, the first rows, and the number of rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_cli.data.formats import FORMATS, Row, rows_of
from rlhf_cli.data.formats.decoded_text import shorten
from rlhf_cli.data.formats.json_blocks import arrow_schema
from rlhf_cli.data.kinds import MIXED, NULL, Kind, kind_of, label, merge
from rlhf_cli.errors import DataError, Prose

if TYPE_CHECKING:
    import pyarrow as pa

_WORTH_ARROW_BYTES = 8 << 20
"""Python reads smaller files, which avoids importing Arrow."""


@dataclass
class Scan:
    """The result of reading a text table: the kind of every column, its first rows, the number of rows.

    `seen` maps a column to the place and text of its first value.
    """

    kinds: dict[str, Kind] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    num_rows: int = 0
    seen: dict[str, tuple[str, str]] = field(default_factory=dict)

    def add(self, rows: Iterable[tuple[str, Row]], limit: int) -> None:
        """Add `(place, row)` pairs, and keep the rows until there are `limit`.

        Raise DataError if a column holds two kinds of value.
        """
        for where, row in rows:
            self.num_rows += 1
            if len(self.rows) < limit:
                self.rows.append(row)
            for column, value in row.items():
                kind = kind_of(value)
                known = self.kinds.get(column, NULL)
                merged = merge(known, kind)
                if merged == MIXED:
                    raise _mixed(column, where, value, kind, self.seen.get(column, ("?", "?")), known)
                self.kinds[column] = merged
                if value is not None and column not in self.seen:
                    self.seen[column] = (where, shorten(str(value), width=40))


def scan(paths: Sequence[Path], format_name: str, limit: int = 0, *, texts: Collection[str] = ()) -> Scan:
    """Read JSONL, JSON or CSV files to their end and keep at most `limit` rows; `texts` are text columns of a CSV.

    Raise DataError on the first bad line, on a column that holds two kinds of value, and on a file without rows.
    """
    if FORMATS[format_name].blocks is not None and sum(path.stat().st_size for path in paths) > _WORTH_ARROW_BYTES:
        try:
            return _by_blocks(paths, format_name, limit)
        except DataError:
            pass  # the row-by-row scan below reports the error and its line
    found = Scan()
    for path in paths:
        before = found.num_rows
        found.add(rows_of(format_name, path, texts), limit)
        if found.num_rows == before or not found.kinds:
            raise no_rows(path)
    return found


def _by_blocks(paths: Sequence[Path], format_name: str, limit: int) -> Scan:
    """Read the files block by block; Python reads only the rows to keep and rows that may change a column's kind."""
    read = FORMATS[format_name].blocks
    assert read is not None, f"{format_name} has no blocks"
    found = Scan()
    schema: pa.Schema | None = None
    for path in paths:
        before = found.num_rows
        for block in read(path):
            table = None if schema is None or len(found.rows) < limit else block.table(schema)
            if table is None:
                found.add(block.rows(), limit)
                schema = arrow_schema(found.kinds) if found.kinds else None
            else:
                found.num_rows += table.num_rows
        if found.num_rows == before or not found.kinds:
            raise no_rows(path)
    return found


def _mixed(column: str, where: str, value: object, kind: Kind, first: tuple[str, str], known: Kind) -> DataError:
    return DataError(
        f"the column {column!r} holds {label(known)} in one row and {label(kind)} in another",
        where=where,
        got=f"{shorten(str(value), width=40)} ({label(kind)})",
        expected=f"{label(known)}, as {first[1]} in {first[0]}",
        hint=Prose(
            "write every row of a column as one type; numbers that are labels or answers are best written as text"
        ),
    )


def no_rows(path: Path) -> DataError:
    """Return the error for a file without rows."""
    return DataError(
        "no rows", where=str(path), got=f"{path.stat().st_size} bytes", hint=Prose("was the file written to its end?")
    )
