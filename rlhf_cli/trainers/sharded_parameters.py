"""Read parameters that may be sharded over ranks: FSDP 2's are DTensors, ZeRO-3's are empty themselves."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


def own_shard(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a sharded tensor, and any other tensor unchanged."""
    if isinstance(tensor, DTensor):
        return tensor.to_local()
    shard: Tensor = getattr(tensor, "ds_tensor", tensor)  # ZeRO-3's parameter is empty, and its shard an attribute
    return shard


def num_elements(parameter: torch.nn.Parameter) -> int:
    """Return the number of a parameter's elements over all ranks, however it is sharded."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))
