"""Provide an in-memory table with the part of the `datasets` interface that our checks use.

So the checks run before `datasets` is imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from rlhf_cli.data.formats import Row
from rlhf_cli.data.peeking import Preview
from rlhf_cli.data.source import Source
from rlhf_cli.data.template import Template, render
from rlhf_cli.data.transcripts import prompt_is_made, split_row


class Batches(Protocol):
    """Some columns of a table, read in batches."""

    def iter(self, batch_size: int) -> Iterator[Mapping[str, Sequence[object]]]:
        """Yield `column -> values` of `batch_size` rows at a time."""


class Table(Protocol):
    """The common interface of a `datasets.Dataset` and a RowTable."""

    @property
    def column_names(self) -> list[str]:
        """Return the names of the columns."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int) -> Mapping[str, object]: ...

    def select_columns(self, column_names: list[str]) -> Batches:
        """Return some of the columns."""


class RowTable:
    """Rows in memory; a column missing from a row is null there."""

    def __init__(self, rows: Sequence[Row], columns: Sequence[str]) -> None:
        self._rows = rows
        self.column_names = list(columns)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> Row:
        return {name: self._rows[row].get(name) for name in self.column_names}

    def select_columns(self, column_names: list[str]) -> RowTable:
        """Return some of the columns."""
        return RowTable(self._rows, column_names)

    def select(self, rows: Sequence[int]) -> RowTable:
        """Return some of the rows, in the order given."""
        return RowTable([self._rows[row] for row in rows], self.column_names)

    def iter(self, batch_size: int) -> Iterator[dict[str, list[object]]]:
        """Yield `column -> values` of `batch_size` rows at a time."""
        for start in range(0, len(self._rows), batch_size):
            rows = self._rows[start : start + batch_size]
            yield {name: [row.get(name) for row in rows] for name in self.column_names}


def prepared_rows(
    source: Source, preview: Preview, prompt: Template | None, columns: Sequence[str], *, transcripts: bool = False
) -> RowTable | None:
    """Return the rows of a preview as the trainer will see them: selected, renamed, with the prompt filled in.

    `columns` are their final columns. Return None if only `datasets` can tell: a hub dataset or a slice of a split.
    Raise DataError if a prompt cannot be filled in.
    """
    if not preview.rows or (source.split is not None and "[" in source.split):
        return None
    start, stop = source.bounds or (0, len(preview.rows))
    new_names = {old: new for new, old in source.rename.items()}
    is_split = transcripts and prompt_is_made([new_names.get(name, name) for name in preview.columns])
    rows = []
    for number, read in enumerate(preview.rows[start:stop], 1):
        row = {new_names.get(name, name): value for name, value in read.items()}
        if is_split:
            row |= split_row(row)
        if prompt is not None:
            row["prompt"] = render(prompt, row, name=f"data.prompt, row {number} of {source.name}")
        rows.append(row)
    return RowTable(rows, columns)
