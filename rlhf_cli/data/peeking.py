"""Looks at a source before anything heavy is imported: its columns, its first rows, and whether it is sound."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.data import worlds
from rlhf_cli.data.data_files import find_files, is_hub
from rlhf_cli.data.formats import FORMATS, Row, rows_of
from rlhf_cli.data.formats.decoded_text import shorten
from rlhf_cli.data.kinds import MIXED, NULL, Kind, kind_of, label, merge
from rlhf_cli.data.source import Source
from rlhf_cli.errors import DataError


@dataclass(frozen=True)
class Preview:
    """A preview that holds what can be known of a source before training libraries, `split`, `rename` and `select`.

    columns: empty where they are not known yet (a hub dataset).
    rows: the first few.
    num_rows: None where unknown.
    origin: a phrase for the plan that `rlhf check` prints.
    """

    columns: tuple[str, ...]
    rows: list[Row]
    num_rows: int | None
    origin: str


@dataclass(frozen=True)
class Scan:
    """A text table that was read to its end: the kind of every column, its first rows, the number of rows."""

    kinds: dict[str, Kind]
    rows: list[Row]
    num_rows: int


def peek(source: Source, limit: int = 8, *, seed: int = 0) -> Preview:
    """Return columns, first `limit` rows and row count of a source; `seed` is that of a world without its own.

    JSONL, JSON and CSV are read and judged to their last line; of Parquet the schema and the first rows; a world is
    generated; a hub dataset is not touched. Raises DataError for whatever is wrong with any of them.
    """
    if source.world is not None:
        total = worlds.num_rows(source.world, source.args, name=source.name)
        rows = worlds.generate(source.world, source.args, seed=seed, name=source.name, limit=limit)
        return Preview(tuple(rows[0]), rows, total, f"embedded world {source.world}")
    if is_hub(source):
        hub_id = source.paths[0] + (f" ({source.subset})" if source.subset else "")
        return Preview((), [], None, f"hub dataset {hub_id}, read when the run starts")
    paths, format_name = find_files(source)
    origin = str(paths[0]) if len(paths) == 1 else f"{len(paths)} {format_name} files, the first is {paths[0]}"
    if (head := FORMATS[format_name].head) is not None:
        columns, rows, total = head(paths, limit)
        if total == 0:
            raise _empty(paths[0])
        return Preview(columns, rows, total, origin)
    scanned = scan(paths, format_name, limit, texts=source.texts)
    return Preview(tuple(scanned.kinds), scanned.rows, scanned.num_rows, origin)


def scan(paths: Sequence[Path], format_name: str, limit: int = 0, *, texts: Collection[str] = ()) -> Scan:
    """Read JSONL, JSON or CSV files to their end, holding at most `limit` rows; of a CSV the columns `texts` are text.

    Raises DataError on the first bad line, on a column that holds two kinds of value, and on a file without rows.
    """
    kinds: dict[str, Kind] = {}
    seen: dict[str, tuple[str, str]] = {}  # column -> where it first held something, and what
    rows: list[Row] = []
    num_rows = 0
    for path in paths:
        before = num_rows
        for where, row in rows_of(format_name, path, texts):
            num_rows += 1
            if len(rows) < limit:
                rows.append(row)
            for column, value in row.items():
                kind = kind_of(value)
                known = kinds.get(column, NULL)
                merged = merge(known, kind)
                if merged == MIXED:
                    raise _mixed(column, where, value, kind, seen[column], known)
                kinds[column] = merged
                if value is not None and column not in seen:
                    seen[column] = (where, shorten(str(value), width=40))
        if num_rows == before or not kinds:
            raise _empty(path)
    return Scan(kinds, rows, num_rows)


def _mixed(column: str, where: str, value: object, kind: Kind, first: tuple[str, str], known: Kind) -> DataError:
    return DataError(
        f"the column {column!r} holds {label(known)} in one row and {label(kind)} in another",
        where=where,
        got=f"{shorten(str(value), width=40)} ({label(kind)})",
        expected=f"{label(known)}, as {first[1]} in {first[0]}",
        hint="write every row of a column as one type; numbers that are labels or answers are best written as text",
    )


def _empty(path: Path) -> DataError:
    return DataError(
        "no rows", where=str(path), got=f"{path.stat().st_size} bytes", hint="was the file written to its end?"
    )
