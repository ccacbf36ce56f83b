"""Define a data source: where rows come from, under which names, and how many of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from rlhf_cli.errors import DataError, UserError
from rlhf_cli.tables.trl_trainers import TrainerRow
from rlhf_cli.text.suggest import nearest

Row = dict[str, object]  # column -> value of one dataset row
Template: TypeAlias = str | Sequence[Mapping[str, str]]  # a text, or messages, with `{column}` fields

SUFFIXES = {
    ".jsonl": "jsonl",
    ".jsonl.gz": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".json.gz": "json",
    ".csv": "csv",
    ".csv.gz": "csv",
    ".tsv": "csv",
    ".tsv.gz": "csv",
    ".parquet": "parquet",
}
"""Suffix of a file name -> the format that it is read as."""

_UNREADABLE = (".txt", ".gz", ".zst", ".zip", ".tar", ".arrow", ".xlsx", ".xml", ".yaml", ".yml", ".pkl", ".db")
"""Suffixes of data files that we cannot read: `prompts/mine.txt` is a missing file, not a hub id."""

_HUB_ID = re.compile(r"(?:[\w-][\w.-]*/[\w-][\w.-]*|[\w-]+)", re.ASCII)


READ_AS_TEXT = ("prompt", "completion", "chosen", "rejected", "reference", "text")
"""Columns that a trainer reads as text or messages. In a CSV, which has no types, they are always text."""


@dataclass
class DataSource:
    """A source of rows, in plain Python values. Raise DataError if its settings contradict each other.

    world, args: name of an embedded world and the arguments of its generator (`num_rows` and `seed` among them).
    path: a file, a folder, a glob, a list of these, or a hub id; see `is_hub`.
    subset, revision: of a hub dataset; None for the hub's default.
    split: in the hub's syntax (`train`, `train[:90%]`); None for `train`.
    rename: new column name -> name in the source.
    select: the first n rows, or [start, stop); applied after split and rename; None keeps all.
    keep: (column, low, high), both inclusive: only rows whose number lies between; None keeps all.
    sort: the column of numbers to sort by, the smallest first; with a `-` in front the largest.
    weight: this source's share of a mixture, above 0, in any unit.
    name: the config key of this source, used as the prefix of its errors.
    transcripts: whether dialogues are split into prompt and answers.
    trainer: whose columns with conversations are read as lists of messages; None for the prompt alone.
    is_read: whether a trainer, a reward or a rule reads a column of this name, after `rename`; by default, all are.
    """

    world: str | None = None
    args: Mapping[str, object] = field(default_factory=dict)
    path: str | Sequence[str] | None = None
    subset: str | None = None
    split: str | None = None
    revision: str | None = None
    rename: Mapping[str, str] = field(default_factory=dict)
    select: int | Sequence[int] | None = None
    keep: tuple[str, float, float] | None = None
    sort: str | None = None
    weight: float = 1.0
    name: str = "data"
    transcripts: bool = False
    trainer: TrainerRow | None = None
    is_read: Callable[[str], bool] = bool
    paths: tuple[str, ...] = field(init=False)  # `path` as a tuple; empty for a world
    is_hub: bool = field(init=False)  # an id like `owner/name` or `name`, without a file suffix, and not on disk
    bounds: tuple[int, int] | None = field(init=False)  # `select` as [start, stop) in rows; None for all of them

    def __post_init__(self) -> None:
        if (self.world is None) == (self.path is None):
            what = "a source has either `world` or `path`"
            hint = f"{self.name}.world=toy_sums, or {self.name}.path=FILE"
            got = "neither" if self.world is None else f"world={self.world!r} and path={self.path!r}"
            raise DataError(what, where=self.name, got=got, hint=hint)
        self.paths = (self.path,) if isinstance(self.path, str) else tuple(self.path or ())
        if self.path is not None and not self.paths:
            raise DataError("the list of paths is empty", where=f"{self.name}.path")
        only = self.paths[0] if len(self.paths) == 1 else ""
        is_id = _HUB_ID.fullmatch(only) is not None and not only.lower().endswith((*SUFFIXES, *_UNREADABLE))
        self.is_hub = is_id and not Path(only).exists()
        for key in ("subset", "revision"):
            if getattr(self, key) is not None and not self.is_hub:
                where = f"{self.name}.{key}"
                raise DataError(f"only a hub dataset has a {key}", where=where, hint=f"'~{where}'")
        select = (0, self.select) if isinstance(self.select, int) else self.select
        if select is not None and not (len(select) == 2 and 0 <= select[0] < select[1]):
            expected = "a number of rows above 0, or [start, stop] with 0 <= start < stop"
            raise DataError("`select` names no rows", where=f"{self.name}.select", got=self.select, expected=expected)
        self.bounds = None if select is None else (select[0], select[1])

    def no_such_split(self) -> DataError:
        """Return the error for a split that files and worlds do not have."""
        expected, where = "train, or a part of it such as train[:90%]: a file has no other split", f"{self.name}.split"
        return DataError("there is no such split", where=where, got=self.split, expected=expected, hint=f"'~{where}'")

    def check_selection(self, num_rows: int) -> None:
        """Raise DataError if `select` names more rows than there are."""
        if self.bounds is not None and self.bounds[1] > num_rows:
            what, expected = "`select` reaches beyond the last row", f"at most {num_rows}, the number of rows"
            where = f"{self.name}.select"
            raise DataError(what, where=where, got=self.select, expected=expected, hint=f"'~{where}'")

    def new_name(self, column: str) -> str | None:
        """Return what `rename` calls a column of the source, or None if it keeps its name."""
        return next((new for new, old in self.rename.items() if old == column), None)

    def with_file(self, error: UserError) -> UserError:
        """Return an error about a row or a column with the files that it is in, and a path by the file's names."""
        for new, old in self.rename.items():
            error.advice = error.advice and error.advice.replace(f"rename.{new}={new}.", f"rename.{new}={old}.")
        if error.where is not None and (", row" in error.where or error.where == self.name) and self.paths:
            error.where += f", {', '.join(self.paths)}"
        return error

    @property
    def texts(self) -> frozenset[str]:
        """Return the columns, by their names in the files, that hold text in a format without types."""
        return frozenset(self.rename.get(column, column) for column in READ_AS_TEXT)

    def reads(self, column: str) -> bool:
        """Return whether the values of a column of the files must be of one kind: something reads it by its name."""
        return column in self.rename.values() or self.is_read(column)


def typed_rename(name: str, new: str, old: str) -> str:
    """Return what to type so that a column gets another name; blanks at its ends and signs need quotes."""
    is_plain = re.fullmatch(r"[\w./-]+( [\w./-]+)*", old) is not None
    return shlex.quote(f"{name}.rename.{new}={old if is_plain else repr(old)}")


def missing_column(column: str, columns: Sequence[str], name: str) -> DataError:
    """Return the error for an unknown column: its name, the config key, the existing columns, the nearest of them."""
    what = f"no column {column!r} in the data"
    return DataError(what, where=name, expected=f"one of {', '.join(columns)}", hint=nearest(column, columns))
