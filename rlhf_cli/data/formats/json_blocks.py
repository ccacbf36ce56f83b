"""Read JSON Lines in blocks, as Arrow tables with known column types.

Arrow's reader is ten times as fast as Python's and, with explicit types, as strict: it rejects all other values, but
does not report the line. So Arrow reads a block first. If it rejects the block, or if the block may not have one object
per line, `json_lines` reads the same lines and reports the error.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_cli.data.formats.decoded_text import blocks, decoded_lines
from rlhf_cli.data.formats.json_lines import parsed
from rlhf_cli.data.kinds import BOOL, INTEGER, NULL, NUMBER, TEXT, Kind, ListOf, Record

if TYPE_CHECKING:
    import pyarrow as pa

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

    if isinstance(kind, ListOf):
        item = _arrow_type(kind.item)
        return None if item is None else pa.list_(item)
    if isinstance(kind, Record):
        fields = arrow_schema(kind.fields)
        return None if fields is None else pa.struct(fields)
    plain = {NULL: pa.null(), BOOL: pa.bool_(), INTEGER: pa.int64(), NUMBER: pa.float64(), TEXT: pa.string()}
    return plain.get(kind)
