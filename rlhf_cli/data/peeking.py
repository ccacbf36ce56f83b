"""Look at a source before anything heavy is imported: its columns and first rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_cli.data import worlds
from rlhf_cli.data.dialogues import read_row_conversations
from rlhf_cli.data.learnt_columns import columns_with_messages
from rlhf_cli.data.rows import RowTable, nested, renamed, take_nested
from rlhf_cli.data.source import DataSource, Row, Template


@dataclass(frozen=True)
class Preview:
    """Facts about a source before `split`, `rename` and `select`, without training libraries.

    columns: empty if not known yet (a hub dataset). rows: the first few. num_rows: None if unknown. origin: a phrase
    for the plan that `rlhf check` prints.
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
    if source.is_hub:
        hub_id = source.paths[0] + (f" ({source.subset})" if source.subset else "")
        return Preview((), [], None, f"hub dataset {hub_id}, read when the run starts")
    from rlhf_cli.data.data_files import find_files, no_rows, scan
    from rlhf_cli.data.file_readers import parquet_head

    paths, format_name = find_files(source)
    origin = str(paths[0]) if len(paths) == 1 else f"{len(paths)} {format_name} files, the first is {paths[0]}"
    if format_name == "parquet":
        columns, rows, total = parquet_head(paths, limit)
        if total == 0:
            raise no_rows(paths[0])
        return Preview(columns, rows, total, origin)
    scanned = scan(paths, format_name, limit, texts=source.texts)
    return Preview(tuple(scanned.kinds), scanned.rows, scanned.num_rows, origin)


def column_names_after(source: DataSource, preview: Preview, prompt: Template | None) -> tuple[str, ...]:
    """Return the columns of a previewed source after `rename` (new -> old), `transcripts` and the prompt template.

    Return an empty tuple if the preview does not know its columns (hub). Raise DataError if `rename` or the template
    uses a column that the source lacks.
    """
    if prompt is not None:
        from rlhf_cli.data.template import refuse_missing_columns, template_columns

        template_columns(prompt)  # checks the template's syntax even if the columns are unknown
    if not preview.columns:
        return ()
    columns = renamed(preview.columns, source.rename, name=source.name)
    if source.transcripts:
        from rlhf_cli.data.transcripts import made_columns

        columns = tuple(dict.fromkeys((*columns, *made_columns(columns, name=source.name))))
    if prompt is None:
        return columns
    refuse_missing_columns(prompt, columns, source)
    return columns if "prompt" in columns else (*columns, "prompt")


def prepared_rows(
    source: DataSource, preview: Preview, prompt: Template | None, columns: Sequence[str]
) -> RowTable | None:
    """Return the rows of a preview as the trainer will see them: selected, renamed, with the prompt filled in.

    `columns` are their final columns. Return None if only `datasets` can tell: a hub dataset or a slice of a split.
    Raise DataError if a prompt cannot be filled in.
    """
    if not preview.rows or (source.split is not None and "[" in source.split):
        return None
    start, stop = source.bounds or (0, len(preview.rows))
    new_names = {old: new for new, old in source.rename.items()}
    inner = nested(preview.columns, source.rename)
    rows = [
        {new_names.get(name, name): value for name, value in row.items()}
        | (take_nested(row, inner, source.name) if inner else {})
        for row in preview.rows[start:stop]
    ]
    names = renamed(preview.columns, source.rename)
    rows = read_row_conversations(rows, columns_with_messages(source, names), name=source.name)
    if source.transcripts:
        from rlhf_cli.data.transcripts import made_columns, split_row

        if made_columns(names):
            rows = [row | split_row(row) for row in rows]
    if prompt is not None:
        from rlhf_cli.data.template import render

        for number, row in enumerate(rows, 1):
            row["prompt"] = render(prompt, row, name=f"data.prompt, row {number} of {source.name}")
    return RowTable(rows, columns)


def first_rows(sources: Sequence[DataSource], *, prompt: Template | None, seed: int, limit: int) -> list[Row]:
    """Return at most `limit` rows as a trainer will see them, usually without the slow import of `datasets`.

    The training loader reads mixtures, slices of a split and hub datasets. Raise DataError like `peek`, or if the
    template is invalid.
    """
    source = sources[0]
    if len(sources) == 1 and not source.is_hub:
        last = (source.bounds or (0, 0))[0] + limit
        preview = peek(source, last, seed=seed)
        table = prepared_rows(source, preview, prompt, column_names_after(source, preview, prompt))
        if table is not None:
            return [table[row] for row in range(min(limit, len(table)))]
    from rlhf_cli.data.loading import load_split  # imports datasets

    dataset = load_split(sources, prompt=prompt, seed=seed)
    return [dict(dataset[row]) for row in range(min(limit, len(dataset)))]
