"""Read files row by row: JSON Lines, JSON lists, CSV with a header line, and the first rows of Parquet files.

A CSV column is integer, number or true/false only if every filled cell of it is, in canonical form (`007` and `1,5`
stay text, and so do an integer of more than 18 digits, `NA` and `None`, which are possible answers). An empty cell is a
null. A column to be read as text always stays text: `7` is an answer like `seven`, and `1.50` is not `1.5`.
"""

from __future__ import annotations

import ast
import codecs
import csv
import gzip
import json
import re
import shlex
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path

from rlhf_cli.data.column_kinds import ColumnKind, Kind, merge
from rlhf_cli.data.source import Row
from rlhf_cli.errors import DataError, in_a_line


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield `(number from 1, line with its end)` of a text file, plain or gzip. Raise DataError if it is unreadable."""
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb") as stream:
            for number, raw in enumerate(stream, 1):
                line = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
                if number == 1:
                    _refuse_other_bytes(path, line)
                try:
                    yield number, line.decode("utf-8")
                except UnicodeDecodeError as error:
                    what = f"byte 0x{line[error.start]:02x} at position {error.start + 1} of the line is not UTF-8"
                    got = shorten(line.decode("utf-8", errors="replace"), around=error.start)
                    advice = "save the file as UTF-8; from Windows: iconv -f cp1252 -t utf-8 OLD > NEW"
                    raise DataError(what, where=f"{path}:{number}", got=got, advice=advice) from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        what, advice = "the gzip file is cut off or damaged", "copy or download it again"
        raise DataError(what, where=f"{path}:{number + 1}", got=error, advice=advice) from None
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
    known = next((other for first, other in _FIRST_BYTES.items() if line.startswith(first)), None)
    if known is None and b"\0" in line:  # UTF-16 without a mark: one byte of every letter of English text is 0
        order = "le" if line[1:2] == b"\0" else "be"
        known = "UTF-16, or binary", f"iconv -f utf-16{order} -t utf-8 {{old}} > {{new}}"
    if known is not None:
        old, new = (shlex.quote(str(file)) for file in (path, path.with_stem(f"{path.stem}-utf8")))
        hint, expected = known[1].format(old=old, new=new), "text in UTF-8, or gzip of it in a .gz file"
        raise DataError(f"the file is {known[0]}", where=str(path), got=repr(line[:20]), expected=expected, hint=hint)


def shorten(text: str, around: int = 0, width: int = 80) -> str:
    """Return at most `width` characters of `text` with position `around` among them; an ellipsis marks cut ends."""
    text = text.rstrip("\r\n")
    start = max(0, min(around - width // 2, len(text) - width))
    return ("…" if start else "") + text[start : start + width] + ("…" if start + width < len(text) else "")


_BATCH_ROWS = 10_000
_BEYOND = "JSON nested too deeply to read, or with a whole number of thousands of digits"


def read_lines(path: Path) -> Iterator[tuple[str, Row]]:
    """Yield the rows of a JSONL file, or of a list, with their `file:line`. Raise DataError at the first bad line."""
    for number, line in numbered_lines(path):
        if number == 1 and line.startswith("["):
            yield from read_list(path)
            return
        if line.strip():
            where = f"{path}:{number}"
            yield where, _parse(line, path, where)


def _in_json(path: Path, line: str) -> str | None:
    """Return the command that writes a file with this bad line as JSON Lines, None for an unknown form."""
    old, new = (shlex.quote(str(file)) for file in (path, path.with_name(f"{path.name.split('.')[0]}-lines.jsonl")))
    if line.strip() in ("{", "["):
        return f"jq -c . {old} > {new}"  # an object over several lines
    if line.rstrip().endswith("},"):
        return f"sed 's/}},[[:space:]]*$/}}/' {old} > {new}"
    try:
        is_python = isinstance(ast.literal_eval(line.strip()), dict)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    lines = "import ast, json, sys; [print(json.dumps(ast.literal_eval(line))) for line in sys.stdin if line.strip()]"
    return f"python -c '{lines}' < {old} > {new}" if is_python else None


def _parse(line: str, path: Path, where: str) -> Row:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        is_cut_off = not line.endswith("\n") and error.msg != "Extra data"
        what = "the last line is cut off" if is_cut_off else f"malformed JSON: {error.msg} at character {error.pos + 1}"
        got, expected = shorten(line, around=error.pos), "one complete JSON object a line"
        hint = None if path.suffix.lower() == ".gz" else _in_json(path, line)
        raise DataError(what, where=where, got=got, expected=expected, hint=hint) from None
    except (RecursionError, ValueError):
        raise DataError(_BEYOND, where=where, got=shorten(line)) from None
    if not isinstance(row, dict):
        expected = 'one object a line, such as {"prompt": "..."}'
        raise DataError("this line is not a JSON object", where=where, got=shorten(line), expected=expected)
    _check_text(row, line, where)
    return row


def _check_text(row: object, source: str, where: str) -> None:
    r"""Raise DataError for half of a surrogate pair: JSON can spell it (`\ud83d`), UTF-8 and so Arrow cannot."""
    if "\\ud" not in source.lower():
        return
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        what = f"the escape \\u{ord(error.object[error.start]):04x} is half of a character"
        got = shorten(source, around=source.lower().find("\\ud"))
        advice = "a program cut the text in the middle of an emoji; repair or drop the row"
        raise DataError(what, where=where, got=got, advice=advice) from None


_EXPECTED = 'a list of objects, such as [{"prompt": "..."}]'


def read_list(path: Path) -> Iterator[tuple[str, Row]]:
    """Yield `(file: item 3, row)` of a list of objects; or lines like `read_lines`. Raise DataError for other JSON."""
    text = "".join(line for _, line in numbered_lines(path))
    if not text.strip():
        return
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and text.startswith("{"):
            yield from read_lines(path)
            return
        what, where = f"malformed JSON: {error.msg}", f"{path}:{error.lineno}"
        got = shorten(dict(enumerate(text.splitlines(), 1)).get(error.lineno, ""), around=error.colno)
        advice = "JSON has no comma after the last item" if got.lstrip().startswith(("]", "}")) else None
        raise DataError(what, where=where, got=got, expected=_EXPECTED, advice=advice) from None
    except (RecursionError, ValueError):
        raise DataError(_BEYOND, where=str(path), got=shorten(text)) from None
    if not isinstance(value, list):
        ways = f"{_EXPECTED}; put one row into [ ]; of columns: pandas' read_json(OLD).to_json(NEW, orient='records')"
        named = value.items() if isinstance(value, dict) else ()
        keys = [key for key, rows in named if isinstance(rows, list) and rows and isinstance(rows[0], dict)]
        old, new = (shlex.quote(str(file)) for file in (path, path.with_stem(f"{path.stem}-list")))
        filtered = shlex.quote(f".{key if (key := keys[0]).isidentifier() else json.dumps(key)}") if keys else ""
        hint = f"jq {filtered} {old} > {new}" if keys else None
        raise DataError("this JSON file is not a list", where=str(path), got=shorten(text), expected=ways, hint=hint)
    for number, row in enumerate(value, 1):
        if not isinstance(row, dict):
            where = f"{path}: item {number}"
            raise DataError("this item is not a JSON object", where=where, got=row, expected=_EXPECTED)
        yield f"{path}: item {number}", row
    _check_text(value, text, str(path))


_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")  # 18 digits fit an int64
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(?!$)(\.[0-9]+)?([eE][+-]?[0-9]+)?")  # a float rounds a longer integer

# A completion in a cell can exceed the csv module's default of 128 KiB.
csv.field_size_limit(1 << 30)


def read_csv(path: Path, texts: Collection[str] = ()) -> Iterator[tuple[str, Row]]:
    """Yield the rows with the `file:line` of their last line; the columns in `texts` hold text.

    Read the file twice, first for the types of its columns. Raise DataError on a row with more or fewer cells than the
    header, and on an empty or repeated column name.
    """
    kinds: dict[str, Kind] = {}
    for _, cells in _cells(path):
        for column, cell in cells.items():
            kind = merge(kinds.get(column, ColumnKind.NULL), _kind_of_cell(cell))
            kinds[column] = ColumnKind.TEXT if column in texts or kind == ColumnKind.MIXED else kind
    for where, cells in _cells(path):
        yield where, {column: _VALUES[kinds[column]](cell) if cell else None for column, cell in cells.items()}


def _cells(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    separator, is_stated = _separator(path)
    reader = csv.reader((line for _, line in numbered_lines(path)), delimiter=separator, strict=True)
    header: list[str] = []
    try:
        for row in reader:
            where = f"{path}:{reader.line_num}"
            if not row or (is_stated and reader.line_num == 1):  # a blank line, or `sep=;`
                continue
            if not header:
                header, got = row, shorten(",".join(row))
                for position, column in enumerate(header):
                    if not column.strip():
                        advice = "name it in the first line; pandas: df.to_csv(FILE, index=False)"
                        raise DataError(f"column {position + 1} has no name", where=where, got=got, advice=advice)
                    if column in header[:position]:
                        raise DataError(f"two columns are named {column!r}", where=where, got=got)
            elif len(row) != len(header):
                what = f"this row has {len(row)} cells, and the header {len(header)} columns"
                got, expected = shorten(",".join(row)), ", ".join(header)
                advice = 'a separator or line break in a cell needs double quotes (") around it, no space before them'
                raise DataError(what, where=where, got=got, expected=expected, advice=advice)
            else:
                yield where, dict(zip(header, row, strict=True))
    except csv.Error as error:
        advice = 'a quote inside a quoted cell is written twice: ""'
        raise DataError(f"malformed CSV: {error}", where=f"{path}:{reader.line_num}", advice=advice) from None


def _separator(path: Path) -> tuple[str, bool]:
    """Return what separates the columns, and whether the first line states it, as Excel's `sep=;` does."""
    header = next((line for _, line in numbered_lines(path) if line.strip()), "")
    if stated := re.fullmatch(r'"?sep=([,;|\t])"?[,;|\t]*\s*', header, re.IGNORECASE):
        return stated[1], True
    signs = "\t,;|" if ".tsv" in path.name.lower() else ",;\t|"
    return next((sign for sign in signs if sign in header), ","), False


def _kind_of_cell(cell: str) -> Kind:
    if cell == "":
        return ColumnKind.NULL
    if cell.lower() in ("true", "false"):
        return ColumnKind.BOOL
    if _INTEGER.fullmatch(cell):
        return ColumnKind.INTEGER
    return ColumnKind.NUMBER if _NUMBER.fullmatch(cell) else ColumnKind.TEXT


_VALUES: dict[Kind, Callable[[str], object]] = {
    ColumnKind.TEXT: str,
    ColumnKind.BOOL: lambda cell: cell.lower() == "true",
    ColumnKind.INTEGER: int,
    ColumnKind.NUMBER: float,
}


def read_parquet_head(paths: Sequence[Path], limit: int) -> tuple[tuple[str, ...], list[Row], int]:
    """Return (columns, up to `limit` rows, number of rows). Raise DataError for other files, or files that differ."""
    # Imported here, because `rlhf check` needs Arrow only for Parquet.
    import pyarrow as pa
    import pyarrow.parquet as pq

    first: list[str] = []
    rows: list[Row] = []
    num_rows = 0
    for path in paths:
        try:
            with pq.ParquetFile(path) as file:
                schema, num_rows = file.schema_arrow, num_rows + file.metadata.num_rows
                for name, kind in zip(schema.names, schema.types, strict=True):
                    if "map<" in str(kind) or schema.names.count(name) > 1:
                        raise pa.ArrowInvalid(f"the column {name!r} is there twice, or a map: rename it")
                if (left := limit - len(rows)) > 0:
                    batches = file.iter_batches(min(left, _BATCH_ROWS))
                    rows += islice((row for batch in batches for row in batch.to_pylist()), left)
        except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
            raise DataError("not a readable Parquet file", where=str(path), got=in_a_line(error)) from None
        columns = [f"{column.name}: {column.type}" for column in schema]
        first = first or columns
        if columns != first:
            what, expected = "two Parquet files have different columns", f"{', '.join(first)}, as in {paths[0]}"
            raise DataError(what, where=str(path), got=", ".join(columns), expected=expected)
    return tuple(schema.names), rows, num_rows
