"""Look at parameters that may lie in shards over the ranks: FSDP 2's are DTensors, ZeRO-3's hold nothing themselves."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


def own_shard(tensor: Tensor) -> Tensor:
    """Return what of a sharded tensor lies on this rank, and any other tensor as it is."""
    if isinstance(tensor, DTensor):
        return tensor.to_local()
    shard: Tensor = getattr(tensor, "ds_tensor", tensor)  # ZeRO-3's parameter is empty, and its shard an attribute
    return shard


def num_elements(parameter: torch.nn.Parameter) -> int:
    """Return the numbers of a parameter over all ranks, however it is sharded."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))
