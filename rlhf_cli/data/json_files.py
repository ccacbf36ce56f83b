"""Read JSON Lines, row by row or by Arrow, and JSON files that are one list.

Arrow's reader is ten times as fast as Python's and, with explicit types, as strict: it rejects all other values, but
does not report the line. So a large file is read by Arrow with the types of its first rows. If Arrow rejects it, Python
reads the same file, and reports an error with its line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_cli.data.file_readers import (
    BOOL,
    INTEGER,
    NULL,
    NUMBER,
    TEXT,
    Kind,
    ListKind,
    RecordKind,
    numbered_lines,
    shorten,
)
from rlhf_cli.data.source import Row
from rlhf_cli.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

_BLOCK_BYTES = 1 << 21
_BEYOND = "JSON nested too deeply to read, or with a whole number of thousands of digits"


def read_lines(path: Path) -> Iterator[tuple[str, Row]]:
    """Yield the rows of a JSONL file with their `file:line`. Raise DataError at the first line that is no object."""
    for number, line in numbered_lines(path):
        if line.strip():
            where = f"{path}:{number}"
            yield where, _parse(line, where)


def _parse(line: str, where: str) -> Row:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        is_cut_off = not line.endswith("\n") and error.msg != "Extra data"
        raise DataError(
            "the last line is cut off" if is_cut_off else f"malformed JSON: {error.msg} at character {error.pos + 1}",
            where=where,
            got=shorten(line, around=error.pos),
            expected="one complete JSON object a line",
        ) from None
    except (RecursionError, ValueError):
        raise DataError(_BEYOND, where=where, got=shorten(line)) from None
    if not isinstance(row, dict):
        expected = 'one object a line, such as {"prompt": "..."}; a file that is one list has a name ending in .json'
        raise DataError("a line that is not a JSON object", where=where, got=shorten(line), expected=expected)
    check_text(row, line, where)
    return row


def check_text(row: object, source: str, where: str) -> None:
    r"""Raise DataError for half of a surrogate pair: JSON can spell it (`\ud83d`), UTF-8 and so Arrow cannot."""
    if "\\ud" not in source.lower():
        return
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"the escape \\u{ord(error.object[error.start]):04x} is half of a character",
            where=where,
            got=shorten(source, around=source.lower().find("\\ud")),
            advice="such text was cut in the middle of an emoji; repair or drop the row",
        ) from None


def read_by_arrow(path: Path, kinds: Mapping[str, Kind]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a JSONL file in batches with the types of `kinds`.

    Raise pyarrow.ArrowInvalid if a row has other types or columns, if the file is malformed, if it does not have one
    object per line, or if Arrow has no type for a column.
    """
    import pyarrow as pa
    import pyarrow.json

    if (schema := arrow_schema(kinds)) is None:
        raise pa.ArrowInvalid("no type for a column")
    num_rows = 0
    with pa.input_stream(path, compression="detect") as stream:
        options = pyarrow.json.ReadOptions(block_size=_BLOCK_BYTES, use_threads=False)
        strict = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
        for batch in pyarrow.json.open_json(stream, read_options=options, parse_options=strict):
            batch.validate(full=True)  # texts are UTF-8
            num_rows += batch.num_rows
            yield batch
    with pa.input_stream(path, compression="detect") as stream:
        num_lines, last = 0, b"\n"
        while block := stream.read(_BLOCK_BYTES):
            num_lines, last = num_lines + block.count(b"\n"), block[-1:]
    if num_rows != num_lines + (last != b"\n"):
        raise pa.ArrowInvalid("not one object per line")


def arrow_schema(kinds: Mapping[str, Kind]) -> pa.Schema | None:
    """Return the columns' Arrow types, or None if Arrow has none for a column, e.g. text mixed with lists."""
    import pyarrow as pa

    types = {name: _arrow_type(kind) for name, kind in kinds.items()}
    known = {name: kind for name, kind in types.items() if kind is not None}
    return pa.schema(list(known.items())) if len(known) == len(types) else None


def _arrow_type(kind: Kind) -> pa.DataType | None:
    import pyarrow as pa

    if isinstance(kind, ListKind):
        item = _arrow_type(kind.item)
        return None if item is None else pa.list_(item)
    if isinstance(kind, RecordKind):
        fields = arrow_schema(kind.fields)
        return None if fields is None else pa.struct(fields)
    plain = {NULL: pa.null(), BOOL: pa.bool_(), INTEGER: pa.int64(), NUMBER: pa.float64(), TEXT: pa.string()}
    return plain.get(kind)


_EXPECTED = 'a list of objects, such as [{"prompt": "..."}]'


def read_list(path: Path) -> Iterator[tuple[str, Row]]:
    """Yield the rows with their place, `file: item 3` (from 1; a parsed JSON value has no line number).

    Raise DataError if the file is not a list of objects.
    """
    text = "".join(line for _, line in numbered_lines(path))
    if not text.strip():
        return
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        line = dict(enumerate(text.splitlines(), 1)).get(error.lineno, "")
        one_object_a_line = error.msg == "Extra data" and text.lstrip().startswith("{")
        raise DataError(
            "several JSON values in a .json file" if one_object_a_line else f"malformed JSON: {error.msg}",
            where=f"{path}:{error.lineno}",
            got=shorten(line, around=error.colno),
            expected=_EXPECTED,
            advice="one object a line is JSONL: rename the file to .jsonl" if one_object_a_line else None,
        ) from None
    except (RecursionError, ValueError):
        raise DataError(_BEYOND, where=str(path), got=shorten(text)) from None
    if not isinstance(value, list):
        raise DataError("a JSON file that is not a list", where=str(path), got=shorten(text), expected=_EXPECTED)
    for number, row in enumerate(value, 1):
        if not isinstance(row, dict):
            where = f"{path}: item {number}"
            raise DataError("an item that is not a JSON object", where=where, got=row, expected=_EXPECTED)
        yield f"{path}: item {number}", row
    check_text(value, text, str(path))
