"""Attend in all segments of a flat batch with one call per layer: torch's variable-length flash attention.

`torch.nn.attention.varlen.varlen_attn` takes the start of each segment. Its causal mask is aligned to the bottom right:
of Q queries and K keys, the last query sees every key, and the i-th (from 0) those before i + 1 + K - Q. A row with a
prompt's keys before its own needs exactly that. torch's documentation does not mention the alignment, but its source
does: `aten/src/ATen/native/transformers/cuda/flash_attn/mask.h` (`apply_mask_local`: `col_idx_limit_right` is the
minimum of K and `row_idx + 1 + K - Q + window_size_right`, which is 0 for the window (-1, 0)). So does the docstring of
flash-attention's `flash_attn_varlen_func`: "aligned to the bottom right corner". `kernel_trial` checks it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_cli.packing.joined_keys import JoinedKeys

CAUSAL = (-1, 0)
"""The window of a causal mask: any number of keys before a query's own position, none after it."""


@dataclass(frozen=True)
class Heads:
    """The settings of a model's attention. Under autocast, `dtype` is autocast's, as in SDPA."""

    device: torch.device
    dtype: torch.dtype
    num_heads: int
    num_key_heads: int
    size: int


def heads_of(query: Tensor, key: Tensor) -> Heads:
    """Return the attention settings for query and key (1, heads, tokens, size)."""
    device, dtype = query.device, query.dtype
    if torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
    return Heads(device, dtype, query.shape[1], key.shape[1], query.shape[3])


def attend_at_once(joined: JoinedKeys, query: Tensor, key: Tensor, value: Tensor, *, scaling: float | None) -> Tensor:
    """Return (1, tokens, heads, size) of query, key and value (1, heads, tokens, size), with grouped key heads.

    scaling: factor of the products, 1 / sqrt(size) by default. Raise torch's error if it lacks such a kernel.
    """
    from torch.nn.attention.varlen import varlen_attn  # takes 1.5 s, and needs a GPU

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
    assert isinstance(found, Tensor)  # a pair if more outputs are requested
    return found.unsqueeze(0)


def _picked(whole: Tensor, places: Tensor) -> Tensor:
    """Return (K, heads, size), the `places` of (tokens, heads, size).

    This is an index_select whose gradient adds in a fixed order; index_select's own on CUDA does not
    (`torch.use_deterministic_algorithms` lists it).
    """
    flat = whole.reshape(whole.shape[0], -1)
    return torch.nn.functional.embedding(places, flat).view(-1, *whole.shape[1:])
