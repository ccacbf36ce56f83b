"""Read lines of UTF-8 text, CSV with a header line, and the first rows of Parquet files.

A CSV column is integer, number or true/false only if every filled cell of it is, in canonical form (`007` and `1,5`
stay text, and so do `NA` and `None`, which are possible answers). An empty cell is a null. A column to be read as text
always stays text: `7` is an answer like `seven`, and `1.50` is not `1.5`.

A kind is `null`, `true/false`, `integer`, `number` or `text`, a list of one kind, a record of named kinds, or `mixed`.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_cli.data.source import Row
from rlhf_cli.errors import DataError

_BOM = b"\xef\xbb\xbf"


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield `(line number from 1, line with its line end)` of a text file, plain or gzip.

    Raise DataError on bytes that are not UTF-8, on broken gzip and on an unreadable file.
    """
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb") as stream:
            for number, raw in enumerate(stream, 1):
                line = raw.removeprefix(_BOM) if number == 1 else raw
                if number == 1:
                    _refuse_other_bytes(path, line)
                try:
                    yield number, line.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise DataError(
                        f"byte 0x{line[error.start]:02x} at position {error.start + 1} of the line is not UTF-8",
                        where=f"{path}:{number}",
                        got=shorten(line.decode("utf-8", errors="replace"), around=error.start),
                        advice="save the file as UTF-8; from Windows: iconv -f cp1252 -t utf-8 OLD > NEW",
                    ) from None
    except EOFError:
        advice = "copy or download it again"
        raise DataError("the gzip file is cut off", where=f"{path}:{number + 1}", advice=advice) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError("the gzip file is damaged", where=f"{path}:{number + 1}", got=error) from None
    except OSError as error:
        raise DataError("the file cannot be read", where=str(path), got=error.strerror or error) from error


_FIRST_BYTES = {
    b"\xff\xfe": ("UTF-16", "iconv -f utf-16 -t utf-8 {old} > {new}"),
    b"\xfe\xff": ("UTF-16", "iconv -f utf-16 -t utf-8 {old} > {new}"),
    b"\x1f\x8b": ("compressed with gzip", "mv {old} {old}.gz"),
    b"PAR1": ("Parquet", "mv {old} {old}.parquet"),
}
"""What a file is that begins with these bytes, and the command that makes it readable."""


def _refuse_other_bytes(path: Path, line: bytes) -> None:
    """Raise DataError if the first line shows that the file is not text in UTF-8 and what it is."""
    without_mark = (
        "UTF-16, or binary",
        f"iconv -f utf-16{'le' if line[1:2] == bytes(1) else 'be'} -t utf-8 {{old}} > {{new}}",
    )
    found = next((other for first, other in _FIRST_BYTES.items() if line.startswith(first)), None)
    if found is not None or b"\0" in line:
        what, command = found or without_mark
        hint = command.format(old=path, new=path.with_stem(f"{path.stem}-utf8"))
        expected = "text in UTF-8, or gzip of it with a name that ends in .gz"
        raise DataError(f"the file is {what}", where=str(path), got=repr(line[:20]), expected=expected, hint=hint)


def shorten(text: str, around: int = 0, width: int = 80) -> str:
    """Return at most `width` characters of `text` with position `around` among them; an ellipsis marks cut ends."""
    text = text.rstrip("\r\n")
    start = max(0, min(around - width // 2, len(text) - width))
    return ("…" if start else "") + text[start : start + width] + ("…" if start + width < len(text) else "")


NULL, BOOL, INTEGER, NUMBER, TEXT, MIXED = "null", "true/false", "integer", "number", "text", "mixed"


@dataclass(frozen=True)
class ListKind:
    """A list whose items are of one kind."""

    item: Kind


@dataclass(frozen=True)
class RecordKind:
    """A JSON object with one kind per field; a field missing from a row is null there."""

    fields: Mapping[str, Kind]


Kind = str | ListKind | RecordKind


_SCALARS = {str: TEXT, type(None): NULL, bool: BOOL, int: INTEGER, float: NUMBER}


def kind_of(value: object) -> Kind:
    """Return the kind of a JSON value."""
    if (scalar := _SCALARS.get(type(value))) is not None:
        return scalar
    if isinstance(value, list):
        item: Kind = NULL
        for element in value:
            item = merge(item, kind_of(element))
        return ListKind(item)
    if isinstance(value, dict):
        return RecordKind({key: kind_of(field) for key, field in value.items()})
    return MIXED


def merge(first: Kind, second: Kind) -> Kind:
    """Return the kind of a column that holds both kinds.

    Null merges with any kind, integer and number give number, lists and records are merged recursively; all other pairs
    are `mixed`.
    """
    if first == second or second == NULL:
        return first
    if first == NULL:
        return second
    if {label(first), label(second)} == {INTEGER, NUMBER}:
        return NUMBER
    if isinstance(first, ListKind) and isinstance(second, ListKind):
        return ListKind(merge(first.item, second.item))
    if isinstance(first, RecordKind) and isinstance(second, RecordKind):
        names = [*first.fields, *(name for name in second.fields if name not in first.fields)]
        return RecordKind({name: merge(first.fields.get(name, NULL), second.fields.get(name, NULL)) for name in names})
    return MIXED


def label(kind: Kind) -> str:
    """Return a word for messages: `text`, `integer`, `list`, `object` ..."""
    if isinstance(kind, str):
        return kind
    return "list" if isinstance(kind, ListKind) else "object"


_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")  # 18 digits fit an int64
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")

# A completion in a cell can exceed the csv module's default of 128 KiB.
csv.field_size_limit(1 << 30)


def read_csv(path: Path, texts: Collection[str] = ()) -> Iterator[tuple[str, Row]]:
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
    reader = csv.reader((line for _, line in numbered_lines(path)), delimiter=_separator(path), strict=True)
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
                    advice="a separator or a line break inside a cell needs quotes around the cell",
                )
            else:
                yield where, dict(zip(header, row, strict=True))
    except csv.Error as error:
        advice = 'a quote inside a quoted cell is written twice: ""'
        raise DataError(f"malformed CSV: {error}", where=f"{path}:{reader.line_num}", advice=advice) from None


def _separator(path: Path) -> str:
    """Return what separates the columns: a comma if the header has one, else a semicolon, a tab or a bar."""
    header = next((line for _, line in numbered_lines(path) if line.strip()), "")
    return next((sign for sign in ("\t,;|" if ".tsv" in path.name.lower() else ",;\t|") if sign in header), ",")


def _checked_header(header: list[str], where: str) -> list[str]:
    for position, column in enumerate(header):
        if not column.strip():
            advice = "give it a name in the first line; pandas: df.to_csv(FILE, index=False)"
            got = shorten(",".join(header))
            raise DataError(f"column {position + 1} has no name", where=where, got=got, advice=advice)
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


def parquet_head(paths: Sequence[Path], limit: int) -> tuple[tuple[str, ...], list[Row], int]:
    """Return `(columns, first rows, number of rows of all files)`, with at most `limit` first rows.

    Raise DataError on a file that is not Parquet and on files whose columns or types differ.
    """
    # Imported here, because `rlhf check` needs Arrow only for Parquet.
    import pyarrow as pa
    import pyarrow.parquet as pq

    first: Any = None
    rows: list[Row] = []
    num_rows = 0
    for path in paths:
        try:
            file = pq.ParquetFile(path)
            num_rows += file.metadata.num_rows
            if len(rows) < limit:
                for batch in file.iter_batches(batch_size=limit):
                    rows += batch.to_pylist()[: limit - len(rows)]
                    if len(rows) == limit:
                        break
        except (pa.ArrowException, OSError) as error:
            raise DataError("not a readable Parquet file", where=str(path), got=str(error).splitlines()[0]) from None
        columns = [f"{column.name}: {column.type}" for column in file.schema_arrow]
        first = first or columns
        if columns != first:
            raise DataError(
                "two Parquet files have different columns",
                where=str(path),
                got=", ".join(columns),
                expected=f"{', '.join(first)}, as in {paths[0]}",
            )
    return tuple(file.schema_arrow.names), rows, num_rows
