"""Say what a reward function is called with: a batch by argument's name, most of whose values have an entry a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

Batch: TypeAlias = Mapping[str, object]
"""TRL's reward arguments and the dataset's columns by name; which have an entry a row: tables/reward_arguments."""


def by_row(batch: Batch, name: str) -> Sequence[object]:
    """Return an argument that has an entry a row. Raises TypeError for one that is no sequence."""
    values = batch[name]
    if not isinstance(values, Sequence):
        raise TypeError(f"`{name}` is no list of one value a completion: {type(values).__name__}")
    return values


def token_ids(batch: Batch, row: int) -> Sequence[int]:
    """Return the token ids of a row's completion. Raises TypeError where they are no sequence."""
    ids = by_row(batch, "completion_ids")[row]
    if not isinstance(ids, Sequence):
        raise TypeError(f"`completion_ids` of row {row} is no list of token ids: {type(ids).__name__}")
    return ids
