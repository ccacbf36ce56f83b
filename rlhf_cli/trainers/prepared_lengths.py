"""Report what `max_length` does to the rows of a trainer that learns from rows, which TRL does not.

Its RewardTrainer drops every pair with a longer text; SFT, DPO and KTO truncate a row, and drop it if only prompt would
remain.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.compute
from datasets import Dataset

from rlhf_cli.errors import DataError
from rlhf_cli.tables.trl_trainers import data_key, too_short_for_all

if TYPE_CHECKING:
    from rlhf_cli.trainers.trl_protocol import TrlArguments

_BATCH = 1000


@dataclass(frozen=True)
class PreparedLengths:
    """The row lengths of one dataset in tokens, and the numbers of dropped and truncated rows."""

    rows: int
    shortest: int
    longest: int
    max_length: int | None
    dropped: int
    cut: int

    def describe(self) -> str:
        """Return `max_length 64 drops 12 of 2000 rows and cuts 30 (shortest 5, longest 90 tokens)`."""
        lengths = f"(shortest {self.shortest}, longest {self.longest} tokens)"
        if self.max_length is None:
            return f"no max_length, all {self.rows} rows as they are {lengths}"
        done = [f"drops {self.dropped} of {self.rows} rows"] if self.dropped else []
        done += [f"cuts {self.cut} of {self.rows} rows off"] if self.cut else []
        return f"max_length {self.max_length} {' and '.join(done) or f'fits all {self.rows} rows'} {lengths}"

    def facts(self) -> dict[str, object]:
        """Return the numbers and their description, for the provenance."""
        return {**dataclasses.asdict(self), "in_words": self.describe()}

    def report(self, name: str) -> None:
        """Log them for TRL's name of the data. Raise DataError if no row is left."""
        where = data_key(name)
        if self.dropped == self.rows:
            lengths = (self.max_length, self.shortest, self.longest)
            raise DataError(**too_short_for_all(self.rows, *lengths), where=where)
        level = logging.WARNING if self.dropped or self.cut else logging.INFO
        logging.getLogger("rlhf").log(level, "%s: %s", where, self.describe())


def prepare_and_measure(
    prepare: Callable[..., Dataset],
    columns: tuple[tuple[str, ...], tuple[str, ...]],
    dataset: Dataset,
    processing_class: object,
    args: TrlArguments,
    *others: object,
) -> tuple[Dataset, PreparedLengths]:
    """Return the prepared rows, and the lengths of `columns` of the rows that are prepared without a limit.

    columns: the beginning of a row, and its texts; only the longest text counts.
    """
    is_packed = len(others) == 3 and bool(others[0])  # SFTTrainer's others are (packing, formatting_func, dataset_name)
    unlimited, limit = copy.copy(args), args.max_length
    unlimited.max_length = None
    prepared = measured = prepare(
        dataset, processing_class, unlimited, *((False, *others[1:]) if is_packed else others)
    )
    if limit is not None or is_packed:
        prepared = prepare(dataset, processing_class, args, *others)
    tokens = list(_lengths(measured, *columns))
    dropped = 0 if is_packed else len(measured) - len(prepared)  # packing puts several rows into one
    longer = 0 if limit is None else sum(length > limit for length in tokens)
    keeps_whole = is_packed and args.packing_strategy != "bfd"
    return prepared, PreparedLengths(
        rows=len(measured),
        shortest=min(tokens),
        longest=max(tokens),
        max_length=limit,
        dropped=dropped,
        cut=0 if keeps_whole else max(0, longer - dropped),
    )


def _lengths(dataset: Dataset, start: tuple[str, ...], texts: tuple[str, ...]) -> Iterator[int]:
    """Yield the tokens of each row: its beginning plus the longest of its texts."""
    for batch in dataset.select_columns([*start, *texts]).with_format("arrow").iter(batch_size=_BATCH):
        counted = {name: pyarrow.compute.list_value_length(batch[name]).to_pylist() for name in (*start, *texts)}
        for row in range(len(batch)):
            yield sum(counted[name][row] for name in start) + max(counted[name][row] for name in texts)
