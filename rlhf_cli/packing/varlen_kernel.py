"""Attends in all segments of a flat batch with one call a layer: torch's flash-attention of variable lengths.

`torch.nn.attention.varlen.varlen_attn` takes the segments by where they begin. Its causal mask is aligned to the bottom
right: of Q queries and K keys the last query sees every key, the i-th (from 0) those before i + 1 + K - Q, as a row
wants it that has a prompt's keys before its own. torch's page does not say so. It is in its source,
`aten/src/ATen/native/transformers/cuda/flash_attn/mask.h` (`apply_mask_local`: `col_idx_limit_right` is the least of K
and `row_idx + 1 + K - Q + window_size_right`, which is 0 for the window (-1, 0)), and in the docstring of
flash-attention's `flash_attn_varlen_func`: "aligned to the bottom right corner". `kernel_trial` looks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_cli.packing.joined_keys import JoinedKeys

CAUSAL = (-1, 0)
"""The window of a causal mask: any number of keys before a query's own place, none behind it."""


@dataclass(frozen=True)
class Heads:
    """Hold what a model's attention is computed with. `dtype` is autocast's where that is on, as SDPA's is."""

    device: torch.device
    dtype: torch.dtype
    num_heads: int
    num_key_heads: int
    size: int


def heads_of(query: Tensor, key: Tensor) -> Heads:
    """Return what attention of query and key (1, heads, tokens, size) is computed with."""
    device, dtype = query.device, query.dtype
    if torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
    return Heads(device, dtype, query.shape[1], key.shape[1], query.shape[3])


def attend_at_once(joined: JoinedKeys, query: Tensor, key: Tensor, value: Tensor, *, scaling: float | None) -> Tensor:
    """Return (1, tokens, heads, size) of query, key and value (1, heads, tokens, size), key heads shared by groups.

    scaling: of the products; None is one over the root of the size. Raises what torch does where it has no such kernel.
    """
    from torch.nn.attention.varlen import varlen_attn  # 1.5 s, and of no use without a GPU

    dtype = heads_of(query, key).dtype
    queries, keys, values = (whole[0].transpose(0, 1).to(dtype) for whole in (query, key, value))
    found = varlen_attn(
        queries,
        _picked(keys, joined.places),
        _picked(values, joined.places),
        joined.cu_queries,
        joined.cu_keys,
        joined.max_queries,
        joined.max_keys,
        scale=scaling,
        window_size=CAUSAL,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(found, Tensor)  # a pair where more is asked for
    return found.unsqueeze(0)


def _picked(whole: Tensor, places: Tensor) -> Tensor:
    """Return (K, heads, size), the `places` of (tokens, heads, size).

    It is an index_select whose gradient adds in a fixed order: index_select's own, on CUDA, has none
    (`torch.use_deterministic_algorithms` lists it).
    """
    flat = whole.reshape(whole.shape[0], -1)
    return torch.nn.functional.embedding(places, flat).view(-1, *whole.shape[1:])
