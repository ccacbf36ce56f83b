"""Measure and report the effect of `max_length` on the rows of a trainer that learns from them directly.

TRL reports no effect. Its RewardTrainer drops every pair with a longer text; SFT, DPO and KTO truncate a row, and drop
it if only prompt would remain.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow
import pyarrow.compute
from datasets import Dataset

from rlhf_cli.errors import DataError
from rlhf_cli.trainers.additions import Additions
from rlhf_cli.trainers.trl_protocol import TrlTrainer

_BATCH = 1000
_log = logging.getLogger("rlhf")


@dataclass(frozen=True)
class Lengths:
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


class WithLengths(TrlTrainer):
    """For a TRL trainer that calls `_prepare_dataset(dataset, ..., args, ..., name)`: measure its rows.

    `additions.measured` names the columns of a prepared row to measure. The rows are first prepared without a limit and
    measured. `lengths` has the results by dataset name.
    """

    additions: Additions
    lengths: dict[str, Lengths]

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, *others: Any) -> Dataset:
        # Called by the constructor, so the attribute may not exist yet.
        self.__dict__.setdefault("lengths", {})
        name = others[-1]
        prepare = super()._prepare_dataset
        is_packed = len(others) == 3 and bool(others[0])
        unlimited = copy.copy(args)
        unlimited.max_length = None
        # SFTTrainer's others are (packing, formatting_func, dataset_name)
        measured = prepare(dataset, processing_class, unlimited, *((False, *others[1:]) if is_packed else others))
        if args.max_length is None and not is_packed:
            prepared, limited = measured, measured
        else:
            prepared = prepare(dataset, processing_class, args, *others)
            limited = measured if is_packed else prepared  # packing puts several rows into one
        is_whole = is_packed and args.packing_strategy != "bfd"
        self._note(name, measured, limited, args.max_length, is_whole=is_whole)
        return prepared

    def _note(self, name: str, measured: Dataset, limited: Dataset, limit: int | None, *, is_whole: bool) -> None:
        assert self.additions.measured is not None
        tokens = list(_lengths(measured, *self.additions.measured))
        dropped = len(measured) - len(limited)
        longer = sum(length > limit for length in tokens) if limit is not None else 0
        lengths = Lengths(
            rows=len(measured),
            shortest=min(tokens),
            longest=max(tokens),
            max_length=limit,
            dropped=dropped,
            cut=0 if is_whole else max(0, longer - dropped),
        )
        self.lengths[name] = lengths
        if dropped == len(measured):
            raise _nothing_left(name, lengths)
        message = "%s: %s"
        which = "data" if name == "train" else "data.eval"
        if lengths.dropped or lengths.cut:
            _log.warning(message, which, lengths.describe())
        else:
            _log.info(message, which, lengths.describe())


def _lengths(dataset: Dataset, start: tuple[str, ...], texts: tuple[str, ...]) -> Iterator[int]:
    """Yield the tokens of each row: its beginning plus the longest of its texts."""
    for batch in dataset.select_columns([*start, *texts]).with_format("arrow").iter(batch_size=_BATCH):
        counted = {name: pyarrow.compute.list_value_length(batch[name]).to_pylist() for name in (*start, *texts)}
        for row in range(len(batch)):
            yield sum(counted[name][row] for name in start) + max(counted[name][row] for name in texts)


def _nothing_left(name: str, lengths: Lengths) -> DataError:
    return DataError(
        f"max_length leaves none of the {lengths.rows} rows",
        where="data" if name == "train" else "data.eval",
        got=f"trainer.args.max_length={lengths.max_length}, and rows of {lengths.shortest} to {lengths.longest} tokens",
        expected=f"at least {lengths.shortest} for the shortest row, {lengths.longest} for all of them",
        hint=f"trainer.args.max_length={lengths.longest}",
    )
