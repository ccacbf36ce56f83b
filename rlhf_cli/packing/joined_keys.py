"""Lays a flat batch out for a kernel that attends in all segments at once: the keys of one behind those of another.

Queries stay where they lie. A row that continues a prompt has the prompt's keys before its own, so the keys of a prompt
are there once for itself and once for each of its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor


@dataclass(frozen=True)
class JoinedKeys:
    """Hold where queries and keys of S segments begin and end, the same for every layer.

    `places` (K,) int64: where in the flat row each of the K keys lies. `cu_queries`, `cu_keys` (S + 1,) int32: where in
    the flat row a segment's queries begin, and where among the K its keys do. `max_queries`, `max_keys`: the most that
    one segment has.
    """

    places: Tensor
    cu_queries: Tensor
    cu_keys: Tensor
    max_queries: int
    max_keys: int


def joined_keys(lengths: Sequence[int], shared: Sequence[int | None], device: torch.device) -> JoinedKeys:
    """Join what belongs together of segments with these lengths: `PackedRows.lengths` and `PackedRows.shared`."""
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
