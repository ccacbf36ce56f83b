"""Lay out the keys of a flat batch for a kernel that attends in all segments at once.

Queries stay in place. A row that continues a prompt needs the prompt's keys before its own, so a prompt's keys occur
once for the prompt itself and once per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor


@dataclass(frozen=True)
class JoinedKeys:
    """The boundaries of queries and keys of S segments, the same for every layer.

    `places` (K,) int64: the position of each of the K keys in the flat row. `cu_queries`, `cu_keys` (S + 1,) int32:
    where a segment's queries begin in the flat row, and where its keys begin among the K. `max_queries`, `max_keys`:
    the maximum per segment.
    """

    places: Tensor
    cu_queries: Tensor
    cu_keys: Tensor
    max_queries: int
    max_keys: int


def joined_keys(lengths: Sequence[int], shared: Sequence[int | None], device: torch.device) -> JoinedKeys:
    """Return the layout for segments with these lengths: `PackedRows.lengths` and `PackedRows.shared`."""
    ends = [0, *accumulate(lengths)]
    num_prompts = len(lengths) - len(shared)
    pieces, counts = [], []
    for segment, prompt in enumerate([*[None] * num_prompts, *shared]):
        parts = [segment] if prompt is None else [prompt, segment]
        pieces += [torch.arange(ends[part], ends[part + 1]) for part in parts]
        counts.append(sum(lengths[part] for part in parts))
    return JoinedKeys(
        places=torch.cat(pieces).to(device),
        cu_queries=torch.tensor(ends, dtype=torch.int32, device=device),
        cu_keys=torch.tensor([0, *accumulate(counts)], dtype=torch.int32, device=device),
        max_queries=max(lengths),
        max_keys=max(counts),
    )
