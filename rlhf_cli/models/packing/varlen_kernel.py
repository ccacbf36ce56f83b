"""Attend in all segments of a flat batch with one call a layer.

Queries stay in place. A row that continues a prompt needs the prompt's keys before its own, so a prompt's keys occur
once for the prompt itself and once per row.

The causal mask of `torch.nn.attention.varlen.varlen_attn` is aligned to the bottom right, which its documentation does
not mention but its source has (aten/src/ATen/native/transformers/cuda/flash_attn/mask.h, `apply_mask_local`): of Q
queries and K keys, the last query sees every key, and the i-th (from 0) those before i + 1 + K - Q. A row with a
prompt's keys before its own needs exactly that.

A trial on real rows (`trainers/pass_mixin`, `reward_model_scorer`) shows a kernel that is wrong or missing.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel


class JoinedKeys(NamedTuple):
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


CAUSAL = (-1, 0)
"""The window of a causal mask: any number of keys before a query's own position, none after it."""


class Heads(NamedTuple):
    """The settings of a model's attention on which the kernel depends. Under autocast, `dtype` is autocast's."""

    device: torch.device
    dtype: torch.dtype
    size: int


def heads_of(query: Tensor) -> Heads:
    """Return the attention settings for a query (1, heads, tokens, size)."""
    device, dtype = query.device, query.dtype
    if torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
    return Heads(device, dtype, query.shape[3])


def varlen_attend(joined: JoinedKeys, query: Tensor, key: Tensor, value: Tensor, *, scaling: float | None) -> Tensor:
    """Return (1, tokens, heads, size) of query, key and value (1, heads, tokens, size), with grouped key heads.

    scaling: factor of the products, 1 / sqrt(size) by default. Raise torch's error if it lacks such a kernel.
    """
    from torch.nn.attention.varlen import varlen_attn  # takes 1.5 s, and needs a GPU

    dtype = heads_of(query).dtype
    queries, keys, values = (whole[0].transpose(0, 1).to(dtype) for whole in (query, key, value))
    # Only where heads are grouped: torch 2.11 lacks this argument.
    attend = functools.partial(varlen_attn, enable_gqa=True) if query.shape[1] != key.shape[1] else varlen_attn
    keys, values = (_picked(whole, joined.places) for whole in (keys, values))
    found = attend(queries, keys, values, *joined[1:], scale=scaling, window_size=CAUSAL)
    assert isinstance(found, Tensor)  # a pair if more outputs are requested
    return found.unsqueeze(0)


def _picked(whole: Tensor, places: Tensor) -> Tensor:
    """Return (K, heads, size), the `places` of (tokens, heads, size).

    This is an index_select whose gradient adds in a fixed order; index_select's own on CUDA does not
    (`torch.use_deterministic_algorithms` lists it).
    """
    flat = whole.reshape(whole.shape[0], -1)
    return torch.nn.functional.embedding(places, flat).view(-1, *whole.shape[1:])


_HALF = (torch.bfloat16, torch.float16)
_LARGEST_HEAD, _STEP_OF_HEADS = 256, 8
"""The limits of `mha_varlen_fwd` in torch's flash_api.cpp."""


def heads_of_model(model: PreTrainedModel | PeftModel, device: torch.device, dtype: torch.dtype) -> Heads:
    """Return the attention settings of a packable model from its configuration."""
    config = model.config.get_text_config()
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Heads(device, dtype, size)


def why_no_varlen(heads: Heads) -> str | None:
    """Return why attention cannot be computed in all segments at once, in words; None if it can."""
    if heads.device.type != "cuda":
        return f"the device is {heads.device.type}"
    if heads.dtype not in _HALF:
        return f"it is computed in {str(heads.dtype).removeprefix('torch.')}"
    capability = torch.cuda.get_device_capability(heads.device)
    if capability < (8, 0):
        return f"the GPU has compute capability {'.'.join(map(str, capability))}; the kernel needs 8.0"
    if heads.size > _LARGEST_HEAD or heads.size % _STEP_OF_HEADS:
        return f"its head size is {heads.size}; the kernel supports multiples of 8 up to 256"
    return None
