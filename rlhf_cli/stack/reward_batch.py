"""Define a reward function's arguments: a batch of values by name, most with one entry per row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

Batch: TypeAlias = Mapping[str, object]
"""TRL's reward arguments and the dataset's columns by name; tables/reward_arguments lists those with entries per row.
"""


def by_row(batch: Batch, name: str) -> Sequence[object]:
    """Return an argument that has one entry per row. Raise TypeError if it is not a sequence."""
    values = batch[name]
    if not isinstance(values, Sequence):
        raise TypeError(f"`{name}` is no list of one value a completion: {type(values).__name__}")
    return values


def token_ids(batch: Batch, row: int) -> Sequence[int]:
    """Return the token ids of a row's completion. Raise TypeError if they are not a sequence."""
    ids = by_row(batch, "completion_ids")[row]
    if not isinstance(ids, Sequence):
        raise TypeError(f"`completion_ids` of row {row} is no list of token ids: {type(ids).__name__}")
    return ids
