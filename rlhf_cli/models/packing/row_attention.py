"""Decide whether a model's rows can be packed into a flat batch, and let it attend row by row there.

transformers passes keyword arguments of a forward pass on to the attention function of every layer. `packed_rows` is
one; a call without it uses the original function unchanged. It must be an argument instead of global state: gradient
checkpointing recomputes a layer in the backward pass, when no context of the forward pass is open.

On a GPU in half precision, one kernel attends in all segments at once instead. Queries stay in place. A row that
continues a prompt needs the prompt's keys before its own, so a prompt's keys occur once for the prompt itself and once
per row. The causal mask of `torch.nn.attention.varlen.varlen_attn` is aligned to the bottom right, which its
documentation does not mention but its source has (aten/src/ATen/native/transformers/cuda/flash_attn/mask.h,
`apply_mask_local`): of Q queries and K keys, the last query sees every key, and the i-th (from 0) those before i + 1 +
K - Q. A row with a prompt's keys before its own needs exactly that. A trial on real rows (`trainers/pass_mixin`,
`reward_model_scorer`) shows a kernel that is wrong or missing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from peft import PeftModel
from torch import Tensor
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rlhf_cli.tables.passes import ATTENTIONS, READ, is_rotary, why_values_not_packed

if TYPE_CHECKING:
    from rlhf_cli.models.packing.packed_rows import PackedRows

ARGUMENT = "packed_rows"
_MORE_THAN_CAUSAL = ("position_bias", "softcap", "cache")
"""Arguments of transformers' `sdpa` that the kernel for all rows does not support."""

Attention = Callable[..., tuple[Tensor, Tensor | None]]


def has_relative_positions(config: PretrainedConfig) -> bool:
    """Return whether a row may be moved left with the same result: rotary embeddings, as in nearly all models."""
    text = config.get_text_config()
    return is_rotary({name: getattr(text, name) for name in READ if hasattr(text, name)})


def why_not_packed(model: PreTrainedModel | PeftModel) -> str | None:
    """Return why a model's rows cannot be packed, in words; None if they can.

    A trial detects what a configuration cannot express: a model that does not pass arguments on to its attention.
    """
    if isinstance(model, PeftModel):
        if model.active_peft_config.is_prompt_learning:
            return "the adapter puts virtual tokens before every prompt"
        model = model.get_base_model()  # type: ignore[assignment]
    config = model.config
    text = config.get_text_config()
    if text is not config:
        return "it reads more than text"
    if not model._supports_attention_backend:
        return "its attention is not one of transformers' attention functions"
    values = {name: getattr(text, name) for name in READ if hasattr(text, name)}
    return why_values_not_packed(values, str(config._attn_implementation))


def register() -> None:
    """Replace transformers' attention functions by ours, once per process."""
    for name in ATTENTIONS:
        attention = ALL_ATTENTION_FUNCTIONS[name]
        if not hasattr(attention, ARGUMENT):
            AttentionInterface.register(name, _by_row(attention))


def model_inputs(rows: PackedRows) -> dict[str, object]:
    """Return the model's inputs, including a four-dimensional mask, which transformers passes on unchanged."""
    register()
    segments = Segments(rows)
    inputs = {"input_ids": rows.input_ids, "position_ids": rows.position_ids}
    return {**inputs, "attention_mask": segments.given, ARGUMENT: segments}


class Segments:
    """The segments of a batch and what attention needs to know about them, computed once for all layers.

    `given` is the mask passed to the model; it has no content, and only needs to arrive unchanged. `joined` is for one
    kernel that attends in all segments, `mask` for one row.
    """

    def __init__(self, rows: PackedRows) -> None:
        self.rows = rows
        self.given = rows.input_ids.new_ones((1,) * 4, dtype=torch.bool)
        self.joined = functools.cache(functools.partial(joined_keys, rows.lengths, rows.shared))
        self.mask = functools.cache(_last_rows)

    def refuse_other_mask(self, mask: Tensor | None) -> None:
        """Raise ValueError if a layer has a mask of the model's own, which would be ignored."""
        given = self.given
        if mask is not None and (mask.shape, mask.dtype) == (given.shape, given.dtype):
            is_copied = mask.device != given.device  # a model on several devices passes on a copy
            if is_copied or mask.data_ptr() == given.data_ptr():
                return
        got = "none" if mask is None else f"{str(mask.dtype).removeprefix('torch.')} {tuple(mask.shape)}"
        raise ValueError(f"the model uses its own attention mask ({got}), which packed rows do not support")


def _last_rows(num_queries: int, num_keys: int, device: torch.device) -> Tensor | None:
    """Return (1, 1, queries, keys) bool: the last query sees every key, the one before it one less."""
    if num_queries == 1:
        return None
    whole = torch.ones((num_queries, num_keys), dtype=torch.bool, device=device)
    return whole.tril(diagonal=num_keys - num_queries)[None, None]


def _by_row(attention: Attention) -> Attention:
    @functools.wraps(attention)
    def attend(
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *others: object,
        **named: object,
    ) -> tuple[Tensor, Tensor | None]:
        segments = named.pop(ARGUMENT, None)
        if segments is None:
            return attention(module, query, key, value, attention_mask, *others, **named)
        assert isinstance(segments, Segments)
        segments.refuse_other_mask(attention_mask)
        if not others and _is_causal_alone(module, key, value, named) and why_no_varlen(heads_of(query)) is None:
            scaling = cast(float | None, named.get("scaling"))
            return varlen_attend(segments.joined(query.device), query, key, value, scaling=scaling), None
        outputs = [
            attention(module, *parts, mask, *others, **named)[0] for parts, mask in _cut(segments, query, key, value)
        ]
        return torch.cat(outputs, dim=1), None

    setattr(attend, ARGUMENT, True)
    return attend


def _is_causal_alone(module: torch.nn.Module, key: Tensor, value: Tensor, named: Mapping[str, object]) -> bool:
    """Return whether only a causal mask and a scale are requested, with keys and values of one size."""
    given = named.get("is_causal")
    is_causal = getattr(module, "is_causal", True) if given is None else given
    has_more = named.get("dropout") or any(named.get(name) is not None for name in _MORE_THAN_CAUSAL)
    return bool(is_causal) and key.shape == value.shape and not has_more


def _cut(
    segments: Segments, query: Tensor, key: Tensor, value: Tensor
) -> Iterator[tuple[tuple[Tensor, Tensor, Tensor], Tensor | None]]:
    """Yield query, key, value (1, heads, tokens, size) and the mask of every segment."""
    rows = segments.rows
    # Use one split: the gradient of a slice is as large as its source, that of a split only as large as itself.
    queries, keys, values = (whole.split(rows.lengths, dim=2) for whole in (query, key, value))
    for own, prompt in enumerate([*[None] * rows.num_prompts, *rows.shared]):
        if prompt is None:
            yield (queries[own], keys[own], values[own]), None
            continue
        whole = tuple(torch.cat([parts[prompt], parts[own]], dim=2) for parts in (keys, values))
        mask = segments.mask(queries[own].shape[2], whole[0].shape[2], query.device)
        yield (queries[own], whole[0], whole[1]), mask


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
    keys, values = (_picked(whole, joined.places) for whole in (keys, values))
    is_grouped = query.shape[1] != key.shape[1]
    found = varlen_attn(queries, keys, values, *joined[1:], scale=scaling, window_size=CAUSAL, enable_gqa=is_grouped)
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
