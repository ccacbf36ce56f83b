"""Define a data source and the kinds of data that trainers read.

A kind is `null`, `true/false`, `integer`, `number` or `text`, a list of one kind, a record of named kinds, or `mixed`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlhf_cli.errors import DataError

Row = dict[str, object]

SUFFIXES = {
    ".jsonl": "jsonl",
    ".jsonl.gz": "jsonl",
    ".json": "json",
    ".json.gz": "json",
    ".csv": "csv",
    ".csv.gz": "csv",
    ".parquet": "parquet",
}
"""Suffix of a file name -> the format that it is read as."""

_UNREADABLE = (".txt", ".tsv", ".gz", ".zst", ".zip", ".tar", ".arrow", ".xlsx", ".xml", ".yaml", ".yml", ".pkl", ".db")
"""Suffixes of data files that we cannot read: `prompts/mine.txt` is a missing file, not a hub id."""

_HUB_ID = re.compile(r"(?:[\w-][\w.-]*/[\w-][\w.-]*|[\w-]+)", re.ASCII)

READ_AS_TEXT = ("prompt", "completion", "chosen", "rejected", "reference", "text")
"""Columns that a trainer reads as text or messages. In a CSV, which has no types, they are always text."""


@dataclass(frozen=True)
class DataSource:
    """A source of rows, in plain Python values. Raise DataError if its settings contradict each other.

    world, args: name of an embedded world and the arguments of its generator (`num_rows` and `seed` among them).
    path: a file, a folder, a glob, a list of these, or a hub id; see `is_hub`.
    subset, revision: of a hub dataset; None for the hub's default.
    split: in the hub's syntax (`train`, `train[:90%]`); None for `train`.
    rename: new column name -> name in the source.
    select: the first n rows, or [start, stop); applied after split and rename; None keeps all.
    weight: this source's share of a mixture, above 0, in any unit.
    name: the config key of this source, used as the prefix of its errors.
    """

    world: str | None = None
    args: Mapping[str, object] = field(default_factory=dict)
    path: str | Sequence[str] | None = None
    subset: str | None = None
    split: str | None = None
    revision: str | None = None
    rename: Mapping[str, str] = field(default_factory=dict)
    select: int | Sequence[int] | None = None
    weight: float = 1.0
    name: str = "data"

    def __post_init__(self) -> None:
        if (self.world is None) == (self.path is None):
            raise DataError(
                "a data source has exactly one of `world` and `path`",
                where=self.name,
                got="neither" if self.world is None else f"world={self.world!r} and path={self.path!r}",
                hint=f"{self.name}.world=toy_sums, or {self.name}.path=FILE",
            )
        if self.path is not None and not self.paths:
            raise DataError("an empty list of paths", where=f"{self.name}.path")
        for key in ("subset", "revision"):
            if getattr(self, key) is not None and not self.is_hub:
                where = f"{self.name}.{key}"
                raise DataError(f"`{key}` belongs to a dataset of the hub", where=where, hint=f"~{where}")
        is_pair = isinstance(self.select, int | None) or len(self.select) == 2
        start, stop = (self.bounds or (0, 1)) if is_pair else (0, 0)
        if not 0 <= start < stop:
            raise DataError(
                "`select` names no rows",
                where=f"{self.name}.select",
                got=self.select,
                expected="a number of rows above 0, or [start, stop] with 0 <= start < stop",
            )

    @property
    def paths(self) -> tuple[str, ...]:
        """Return `path` as a tuple; empty for a world."""
        if self.path is None:
            return ()
        return (self.path,) if isinstance(self.path, str) else tuple(self.path)

    def check_selection(self, num_rows: int) -> None:
        """Raise DataError if `select` names more rows than there are."""
        if self.bounds is not None and self.bounds[1] > num_rows:
            raise DataError(
                "`select` reaches beyond the last row",
                where=f"{self.name}.select",
                got=self.select,
                expected=f"at most {num_rows}, the number of rows",
                hint=f"~{self.name}.select",
            )

    @property
    def is_hub(self) -> bool:
        """Return whether `path` is a hub id: like `owner/name` or `name`, without a file suffix, and not on disk."""
        if len(self.paths) != 1 or self.paths[0].lower().endswith((*SUFFIXES, *_UNREADABLE)):
            return False
        return _HUB_ID.fullmatch(self.paths[0]) is not None and not Path(self.paths[0]).exists()

    @property
    def texts(self) -> frozenset[str]:
        """Return the source's names of the columns that are text in an untyped format."""
        return frozenset(self.rename.get(name, name) for name in READ_AS_TEXT)

    @property
    def bounds(self) -> tuple[int, int] | None:
        """Return `select` as [start, stop) in rows; None for all of them."""
        if self.select is None:
            return None
        if isinstance(self.select, int):
            return 0, self.select
        return self.select[0], self.select[1]


NULL, BOOL, INTEGER, NUMBER, TEXT, MIXED = "null", "true/false", "integer", "number", "text", "mixed"


@dataclass(frozen=True)
class ListKind:
    """A list whose items are of one kind."""

    item: Kind


@dataclass(frozen=True)
class RecordKind:
    """A JSON object with one kind per field; a field missing from a row is null there."""

    fields: Mapping[str, Kind]


Kind = str | ListKind | RecordKind


_SCALARS = {str: TEXT, type(None): NULL, bool: BOOL, int: INTEGER, float: NUMBER}


def kind_of(value: object) -> Kind:
    """Return the kind of a JSON value."""
    if (scalar := _SCALARS.get(type(value))) is not None:
        return scalar
    if isinstance(value, list):
        item: Kind = NULL
        for element in value:
            item = merge(item, kind_of(element))
        return ListKind(item)
    if isinstance(value, dict):
        return RecordKind({key: kind_of(field) for key, field in value.items()})
    return MIXED


def merge(first: Kind, second: Kind) -> Kind:
    """Return the kind of a column that holds both kinds.

    Null merges with any kind, integer and number give number, lists and records are merged recursively; all other pairs
    are `mixed`.
    """
    if first == second or second == NULL:
        return first
    if first == NULL:
        return second
    if {label(first), label(second)} == {INTEGER, NUMBER}:
        return NUMBER
    if isinstance(first, ListKind) and isinstance(second, ListKind):
        return ListKind(merge(first.item, second.item))
    if isinstance(first, RecordKind) and isinstance(second, RecordKind):
        names = [*first.fields, *(name for name in second.fields if name not in first.fields)]
        return RecordKind({name: merge(first.fields.get(name, NULL), second.fields.get(name, NULL)) for name in names})
    return MIXED


def label(kind: Kind) -> str:
    """Return a word for messages: `text`, `integer`, `list`, `object` ..."""
    if isinstance(kind, str):
        return kind
    return "list" if isinstance(kind, ListKind) else "object"
