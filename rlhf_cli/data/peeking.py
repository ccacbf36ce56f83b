"""Preview a data source without heavy imports: its columns, its first rows, and its errors."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_cli.data import worlds
from rlhf_cli.data.data_files import find_files, is_hub
from rlhf_cli.data.formats import FORMATS, Row
from rlhf_cli.data.scanning import no_rows, scan
from rlhf_cli.data.source import Source


@dataclass(frozen=True)
class Preview:
    """Facts about a source before `split`, `rename` and `select`, without training libraries.

    columns: empty if not known yet (a hub dataset).
    rows: the first few.
    num_rows: None if unknown.
    origin: a phrase for the plan that `rlhf check` prints.
    """

    columns: tuple[str, ...]
    rows: list[Row]
    num_rows: int | None
    origin: str


def peek(source: Source, limit: int = 8, *, seed: int = 0) -> Preview:
    """Return columns, first `limit` rows and row count of a source; `seed` is for a world without its own.

    JSONL, JSON and CSV files are read and checked to the end; for Parquet, only the schema and the first rows are read.
    A world is generated. A hub dataset is not accessed. Raise DataError if the source is invalid.
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
            raise no_rows(paths[0])
        return Preview(columns, rows, total, origin)
    scanned = scan(paths, format_name, limit, texts=source.texts)
    return Preview(tuple(scanned.kinds), scanned.rows, scanned.num_rows, origin)
