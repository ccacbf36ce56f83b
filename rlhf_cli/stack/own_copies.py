"""Give each reward function its own copies of the arguments, so that changes reach no other function or the trainer.

Only containers are copied; texts and numbers are immutable and shared.
"""

from __future__ import annotations

import copy

from rlhf_cli.stack.reward_batch import Batch
from rlhf_cli.tables.reward_arguments import REWARD_ARGUMENTS

_SHARED = frozenset(row.name for row in REWARD_ARGUMENTS.values() if not row.is_text)
"""The trainer's own objects and functions, which are not data: its state, environments, the loggers."""

_FIXED = {str, int, float, bool, bytes, complex, type(None)}
_ARRAYS = ("numpy", "torch")


def with_own_arguments(batch: Batch) -> Batch:
    """Return the batch with deep copies of all lists, dicts, sets and arrays."""
    return {name: value if name in _SHARED else _own(value) for name, value in batch.items()}


def _own(value: object) -> object:
    kind = type(value)
    if kind in _FIXED:
        return value
    if kind is list and isinstance(value, list):
        return value.copy() if _FIXED.issuperset(map(type, value)) else [_own(item) for item in value]
    if kind is dict and isinstance(value, dict):
        return {key: _own(item) for key, item in value.items()}
    if kind is tuple and isinstance(value, tuple):
        return value if _FIXED.issuperset(map(type, value)) else tuple(_own(item) for item in value)
    if isinstance(value, list | dict | set | bytearray | tuple) or kind.__module__.partition(".")[0] in _ARRAYS:
        return copy.deepcopy(value)
    return value
