"""Look at a source before anything heavy is imported: its columns and first rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_cli.data import worlds
from rlhf_cli.data.column_kinds import ColumnKind
from rlhf_cli.data.images import opened
from rlhf_cli.data.preparing import prepare, template_columns
from rlhf_cli.data.rows import RowTable
from rlhf_cli.data.source import DataSource, Row, Template

_PART = r"\s*train(\[-?[\d_]*%?:-?[\d_]*%?\])?(\([^)]*\))?\s*"
_SPLIT = rf"{_PART}(\+{_PART})*"  # a split of a file or a world, in the syntax of `datasets`


@dataclass(frozen=True)
class Preview:
    """Facts about a source before `split`, `rename`, `select`; columns and rows of a hub dataset are unknown.

    `left_out` are the columns of mixed values.
    """

    columns: tuple[str, ...]
    rows: list[Row]
    num_rows: int | None
    origin: str
    left_out: tuple[str, ...] = ()


LEFT_OUT = "the column {!r} is left out: its values are of several kinds, or beyond 64 bits; write all of them as text"


def peek(source: DataSource, limit: int = 8, *, seed: int = 0) -> Preview:
    """Return columns, first `limit` rows and row count of a source; `seed` is for a world without its own.

    JSONL, JSON and CSV files are read and checked to the end; of Parquet, only the schema and these rows are read. A
    hub dataset is not accessed. Raise DataError if the source is invalid.
    """
    if not source.is_hub and re.fullmatch(_SPLIT, source.split or "train") is None:
        raise source.no_such_split()
    if source.world is not None:
        total = worlds.num_rows(source.world, source.args, name=source.name)
        rows = worlds.generate(source.world, source.args, seed=seed, name=source.name, limit=limit)
        return Preview(tuple(rows[0]), rows, total, f"embedded world {source.world}")
    if source.is_hub:
        hub_id = source.paths[0] + (f" ({source.subset})" if source.subset else "")
        return Preview((), [], None, f"hub dataset {hub_id}, read when the run starts")
    from rlhf_cli.data.data_files import find_files, scan

    paths, format_name = find_files(source)
    origin = str(paths[0]) if len(paths) == 1 else f"{len(paths)} {format_name} files, the first is {paths[0]}"
    scanned = scan(paths, format_name, limit, source)
    columns = tuple(name for name, kind in scanned.kinds.items() if kind != ColumnKind.MIXED)
    left_out = tuple(name for name in scanned.kinds if name not in columns)
    return Preview(columns, scanned.rows, scanned.num_rows, origin, left_out)


def prepare_preview(
    source: DataSource, preview: Preview, prompt: Template | None
) -> tuple[tuple[str, ...], RowTable | None]:
    """Return the columns of a previewed source as the trainer will see them, and its selected rows.

    The columns are empty if unknown (a hub dataset). The rows are None if they are not among those of the preview (a
    hub dataset, a slice of a split, rows far down). Raise DataError like `prepare`.
    """
    if prompt is not None:
        template_columns(prompt)  # checks the template's syntax even if the columns are unknown
    if not preview.columns:
        return (), None
    is_sliced = source.split is not None and "[" in source.split
    start, stop = source.bounds or (0, preview.num_rows or 0)
    rows = RowTable([] if is_sliced else preview.rows[start:stop], preview.columns)
    table = prepare(rows, source, prompt, is_whole=not is_sliced and stop <= len(preview.rows))
    assert isinstance(table, RowTable)
    return tuple(table.column_names), table if len(table) else None


def first_rows(sources: Sequence[DataSource], *, prompt: Template | None, seed: int, limit: int) -> list[Row]:
    """Return up to `limit` rows as a trainer will see them, usually without `datasets`. Raise DataError like `peek`."""
    source = sources[0]
    if len(sources) == 1 and not source.is_hub and source.keep is None and source.sort is None:
        last = (source.bounds or (0, 0))[0] + limit
        _, table = prepare_preview(source, peek(source, last, seed=seed), prompt)
        if table is not None:
            return [opened(table[row]) for row in range(min(limit, len(table)))]
    from rlhf_cli.data.loading import load_split  # imports datasets

    dataset = load_split(sources, prompt=prompt, seed=seed)
    return [opened(dict(dataset[row])) for row in range(min(limit, len(dataset)))]
