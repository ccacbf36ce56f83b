"""Return the first rows as a trainer will see them, usually without the slow import of `datasets`."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_cli.data import worlds
from rlhf_cli.data.data_files import is_hub
from rlhf_cli.data.formats import Row
from rlhf_cli.data.peeking import peek, renamed
from rlhf_cli.data.source import DataSource
from rlhf_cli.data.template import Template, refuse_missing_columns, render


def first_rows(
    sources: Sequence[DataSource], *, prompt: Template | None, transcripts: bool, seed: int, limit: int
) -> list[Row]:
    """Return at most `limit` rows after select, rename and the prompt template.

    Use the training loader for mixtures, split slices, transcripts and hub datasets. Raise DataError if the source or
    the template is invalid.
    """
    source = sources[0]
    is_plain = len(sources) == 1 and not is_hub(source) and "[" not in (source.split or "") and not transcripts
    if not is_plain:
        from rlhf_cli.data.loading import load_split  # imports datasets

        dataset = load_split(sources, prompt=prompt, seed=seed, transcripts=transcripts)
        return [dict(dataset[index]) for index in range(min(limit, len(dataset)))]
    start, stop = source.bounds or (0, None)
    last = start + limit if stop is None else min(stop, start + limit)
    if source.world is not None:
        rows = worlds.generate(source.world, source.args, seed=seed, name=source.name, limit=last)
        columns: Sequence[str] = tuple(rows[0])
    else:
        preview = peek(source, limit=last)
        rows, columns = preview.rows, preview.columns
    names = dict(zip(columns, renamed(columns, source.rename, name=source.name), strict=True))
    seen = [{names[column]: row.get(column) for column in columns} for row in rows[start:last]]
    if prompt is None:
        return seen
    refuse_missing_columns(prompt, list(names.values()))
    return [
        {**row, "prompt": render(prompt, row, name=f"data.prompt, row {start + number + 1} of {source.name}")}
        for number, row in enumerate(seen)
    ]
