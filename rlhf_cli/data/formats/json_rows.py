"""Read JSON Lines, row by row or in Arrow blocks, and JSON files that are one list.

Arrow's reader is ten times as fast as Python's and, with explicit types, as strict: it rejects all other values, but
does not report the line. So Arrow reads a block first. If it rejects the block, or if the block may not have one object
per line, `json_lines` reads the same lines and reports the error.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_cli.data.formats.decoded_text import blocks, decoded_lines, numbered_lines, shorten
from rlhf_cli.data.source import BOOL, INTEGER, NULL, NUMBER, TEXT, Kind, ListKind, RecordKind
from rlhf_cli.errors import DataError, Prose

if TYPE_CHECKING:
    import pyarrow as pa


def read_lines(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the rows of a JSONL file with their `file:line`. Raise DataError at the first line that is no object."""
    yield from parsed(path, numbered_lines(path))


def parsed(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the rows of numbered lines of a file, like `read`."""
    for number, line in lines:
        if line.strip():
            where = f"{path}:{number}"
            yield where, _parse(line, where)


def _parse(line: str, where: str) -> dict[str, object]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise _malformed(line, where, error) from None
    except RecursionError:
        raise DataError("JSON nested too deeply to read", where=where, got=shorten(line)) from None
    if not isinstance(row, dict):
        raise DataError(
            "a line that is not a JSON object",
            where=where,
            got=shorten(line),
            expected='one object a line, such as {"prompt": "..."}',
            hint=Prose("a file that is one JSON list is read when its name ends in .json")
            if line.startswith("[")
            else None,
        )
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
            hint=Prose("such text was cut in the middle of an emoji; repair or drop the row"),
        ) from None


def _malformed(line: str, where: str, error: json.JSONDecodeError) -> DataError:
    cut_off = not line.endswith("\n") and error.msg != "Extra data"
    return DataError(
        "the last line is cut off" if cut_off else f"malformed JSON: {error.msg} at character {error.pos + 1}",
        where=where,
        got=shorten(line, around=error.pos),
        expected="one complete JSON object a line",
        hint=Prose("the program that wrote the file was stopped; delete this line or write the file again")
        if cut_off
        else None,
    )


_FIRST_BLOCK, _BLOCK = 1 << 18, 1 << 21
"""Bytes per block. The first block is small, because Python infers the types from it."""


class Block:
    """Some lines of a file, starting at line `first`."""

    def __init__(self, path: Path, first: int, content: bytes) -> None:
        self._path, self._first, self._content = path, first, content

    def __len__(self) -> int:
        """Return the maximum number of rows."""
        return self._content.count(b"\n") + 1

    def rows(self) -> Iterator[tuple[str, dict[str, object]]]:
        """Yield the rows with their `file:line`, with the errors of `json_lines.read`."""
        yield from parsed(self._path, decoded_lines(self._path, self._first, io.BytesIO(self._content)))

    def table(self, schema: pa.Schema) -> pa.Table | None:
        """Return the lines as a table, or None if they do not fit the schema or may not be one object per line."""
        import pyarrow as pa
        import pyarrow.json

        content = self._content.replace(b"\r\n", b"\n").rstrip(b"\n")
        # If only `}` precedes and only `{` follows each line end, no object spans two lines. So each line has at least
        # one object, and if the counts are equal, exactly one.
        if not content.startswith(b"{") or not content.endswith(b"}"):
            return None
        num_lines = content.count(b"\n") + 1
        if content.count(b"}\n{") != num_lines - 1:
            return None
        try:
            table = pyarrow.json.read_json(
                pa.BufferReader(content),
                read_options=pyarrow.json.ReadOptions(block_size=len(content) + 1, use_threads=False),
                parse_options=pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error"),
            )
            table.validate(full=True)  # texts are UTF-8
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            return None
        return table if table.num_rows == num_lines else None


def read_blocks(path: Path) -> Iterator[Block]:
    """Yield the lines of a file in blocks. Raise DataError if the file cannot be read."""
    for first, content in blocks(path, _FIRST_BLOCK, _BLOCK):
        yield Block(path, first, content)


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


def read_list(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the rows with their place, `file: item 3` (from 1; a parsed JSON value has no line number).

    Raise DataError if the file is not a list of objects.
    """
    text = "".join(line for _, line in numbered_lines(path))
    if not text.strip():
        return
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        lines = text.splitlines()
        one_object_a_line = error.msg == "Extra data" and text.lstrip().startswith("{")
        raise DataError(
            "several JSON values in a .json file" if one_object_a_line else f"malformed JSON: {error.msg}",
            where=f"{path}:{error.lineno}",
            got=shorten(lines[error.lineno - 1] if error.lineno <= len(lines) else "", around=error.colno),
            expected=_EXPECTED,
            hint=Prose("one object a line is JSONL: rename the file to .jsonl") if one_object_a_line else None,
        ) from None
    except RecursionError:
        raise DataError("JSON nested too deeply to read", where=str(path), got=shorten(text)) from None
    if not isinstance(value, list):
        keys = f"an object with the keys {', '.join(map(repr, list(value)[:8]))}" if isinstance(value, dict) else None
        raise DataError(
            "a JSON file that is not a list", where=str(path), got=keys or shorten(text), expected=_EXPECTED
        )
    for number, row in enumerate(value, 1):
        where = f"{path}: item {number}"
        if not isinstance(row, dict):
            got = shorten(json.dumps(row, ensure_ascii=False))
            raise DataError("an item that is not a JSON object", where=where, got=got, expected=_EXPECTED)
        yield where, row
    check_text(value, text, str(path))
