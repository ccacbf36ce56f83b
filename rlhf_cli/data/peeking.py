"""Look at a source before anything heavy is imported: its columns and first rows."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from rlhf_cli.data import worlds
from rlhf_cli.data.data_files import find_files, is_hub, no_rows, scan
from rlhf_cli.data.formats import FORMATS, Row
from rlhf_cli.data.source import DataSource
from rlhf_cli.data.template import Template, missing_column, refuse_missing_columns, template_columns
from rlhf_cli.data.transcripts import prompt_is_made
from rlhf_cli.errors import DataError, Prose


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


def peek(source: DataSource, limit: int = 8, *, seed: int = 0) -> Preview:
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


def column_names_after(
    preview: Preview,
    rename: Mapping[str, str],
    prompt: Template | None,
    *,
    name: str = "data",
    transcripts: bool = False,
) -> tuple[str, ...]:
    """Return the columns of a previewed source after `rename` (new -> old), `transcripts` and the prompt template.

    Return an empty tuple if the preview does not know its columns (hub). Raise DataError if `rename` or the template
    uses a column that the source lacks.
    """
    if prompt is not None:
        template_columns(prompt)  # checks the template's syntax even if the columns are unknown
    if not preview.columns:
        return ()
    columns = renamed(preview.columns, rename, name=name)
    if transcripts and prompt_is_made(columns, name=name):
        columns = (*columns, "prompt")
    if prompt is None:
        return columns
    refuse_missing_columns(prompt, columns)
    return columns if "prompt" in columns else (*columns, "prompt")


def _override(key: str, value: str) -> str:
    return shlex.quote(f"{key}={value}")


def renamed(columns: Sequence[str], rename: Mapping[str, str], *, name: str = "data") -> tuple[str, ...]:
    """Return `columns` under their new names, in their old order.

    Raise DataError if a column does not exist or if two columns would get the same name.
    """
    new_names: dict[str, str] = {}
    for new, old in rename.items():
        where = f"{name}.rename.{new}"
        if old not in columns and new in columns and new not in rename.values():
            raise DataError(
                f"the data has no column {old!r}, and one that is called {new!r}",
                where=where,
                got=f"{new}: {old}",
                expected="the new name first, then the column of the data that is to have it",
                hint=f"{name}.rename.{old}={new}",
            )
        if old not in columns:
            raise missing_column(old, columns, where, partial(_override, where))
        if old in new_names:
            raise DataError(f"the column {old!r} is renamed twice", where=where, got=f"{new_names[old]} and {new}")
        if new in columns and new not in rename.values():
            raise DataError(
                f"there is a column {new!r} already",
                where=where,
                got=f"{new}: {old}",
                hint=Prose(f"give the old one another name too: {name}.rename.old_{new}={new}"),
            )
        new_names[old] = new
    return tuple(new_names.get(column, column) for column in columns)
