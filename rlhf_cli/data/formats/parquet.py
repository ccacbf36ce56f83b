"""Read schema, row count and first rows of a Parquet file without reading the rest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_cli.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa


def head(paths: Sequence[Path], limit: int) -> tuple[tuple[str, ...], list[dict[str, object]], int]:
    """Return `(columns, first rows, number of rows of all files)`, with at most `limit` first rows.

    Raise DataError on a file that is not Parquet and on files whose columns or types differ.
    """
    # Imported here, because `rlhf check` needs Arrow only for Parquet.
    import pyarrow as pa
    import pyarrow.parquet as pq

    first: Any = None
    rows: list[dict[str, object]] = []
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
        schema = file.schema_arrow
        if first is None:
            first = schema
        elif not schema.equals(first):
            raise _differs(paths[0], first, path, schema)
    return tuple(first.names), rows, num_rows


def _differs(first: Path, first_schema: pa.Schema, other: Path, other_schema: pa.Schema) -> DataError:
    ours = dict(zip(first_schema.names, map(str, first_schema.types), strict=True))
    theirs = dict(zip(other_schema.names, map(str, other_schema.types), strict=True))
    names = [name for name in [*ours, *theirs] if ours.get(name) != theirs.get(name)]
    column = names[0] if names else "(order of the columns)"
    return DataError(
        f"two Parquet files disagree about the column {column!r}",
        where=str(other),
        got=theirs.get(column, "no such column"),
        expected=f"{ours.get(column, 'no such column')}, as in {first}",
    )
