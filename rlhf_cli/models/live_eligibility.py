"""Decide whether finished rows can leave a batch that generates.

The cache, score processors, stopping criteria and, with sharded weights, the other ranks may still need a row. A
component that is not known to treat each row independently is assumed to use all of them.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer
from transformers.generation import GenerationMixin, logits_process, stopping_criteria
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.integrations.fsdp import is_fsdp_managed_module

from rlhf_cli.models.stop_strings import StopCriterion

ROW_BY_ROW = frozenset(
    {
        logits_process.InfNanRemoveLogitsProcessor,
        logits_process.MinLengthLogitsProcessor,
        logits_process.MinNewTokensLengthLogitsProcessor,
        logits_process.MinPLogitsWarper,
        logits_process.NoRepeatNGramLogitsProcessor,
        logits_process.RepetitionPenaltyLogitsProcessor,
        logits_process.SuppressTokensLogitsProcessor,
        logits_process.TemperatureLogitsWarper,
        logits_process.TopKLogitsWarper,
        logits_process.TopPLogitsWarper,
    }
)
"""Processors that use only a row's own tokens and scores, and keep no state of it for the next token."""


def of_rows(processors: LogitsProcessorList, rows: Tensor) -> LogitsProcessorList:
    """Return the processors for these rows only: a repetition penalty has one position per row, after its padding."""
    kept = LogitsProcessorList()
    for processor in processors:
        first = getattr(processor, "prompt_ignore_length", None)
        if isinstance(first, Tensor):
            processor = copy.copy(processor)  # the caller's processors are not changed
            processor.prompt_ignore_length = first[rows]
        kept.append(processor)
    return kept


_ENDINGS = frozenset(
    {
        stopping_criteria.EosTokenCriteria,
        stopping_criteria.MaxLengthCriteria,
        stopping_criteria.MaxTimeCriteria,
        StopCriterion,
    }
)
_LAYERS = frozenset({DynamicLayer, DynamicSlidingWindowLayer})
_PREPARED = inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
CACHE_INPUT = "cache" if "cache" in _PREPARED else "past_key_values"
"""The name under which `generate` gives a model its cache; transformers renamed it in 5.24."""
_MODES = ("greedy_search", "sample")
_INPUTS = frozenset({"attention_mask", "position_ids", CACHE_INPUT, "use_cache", "logits_to_keep"})


def why_not_ahead(model: Any, config: GenerationConfig) -> str | None:
    """Return why rows of `model` may not leave the batch under these generation settings, or None."""
    name = type(model).__name__
    if model.config.is_encoder_decoder:
        return f"{name} has an encoder, whose output is kept for every row"
    if model.is_remote_code():
        return f"{name} has its own code, which may generate in another way"
    if not model._supports_default_dynamic_cache():
        return f"{name} has a cache of its own kind"
    if why := _why_not_cache(DynamicCache(config=model.config.get_text_config())):
        return why
    mode = config.get_generation_mode().value
    refused = {
        "use_cache": config.use_cache is False,
        "cache_implementation": config.cache_implementation not in (None, "dynamic"),
        "prefill_chunk_size": config.prefill_chunk_size is not None,
        "return_dict_in_generate": bool(config.return_dict_in_generate),
    }
    named = [f"{key}={getattr(config, key)!r}" for key, is_refused in refused.items() if is_refused]
    named += [] if mode in _MODES else [mode]
    return f"only transformers generates with {', '.join(named)}" if named else None


def why_not_call(
    model: Any,
    num_rows: int,
    processors: LogitsProcessorList,
    criteria: StoppingCriteriaList,
    inputs: Mapping[str, object],
) -> str | None:
    """Return why rows may not leave, given what `generate` prepared: score processors, stopping criteria, inputs."""
    if is_in_parts(model):
        return "the weights are sharded over several ranks, which must take every step together"
    if getattr(model.prepare_inputs_for_generation, "__self__", model) is not model:
        return "an adapter puts its own tokens before the prompts"
    if others := sorted(name for name, value in inputs.items() if name not in _INPUTS and value is not None):
        return f"the model also gets {', '.join(others)}"
    shapes = {name: tuple(value.shape) for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    if others := sorted(f"{name} {shape}" for name, shape in shapes.items() if len(shape) != 2 or shape[0] != num_rows):
        return f"the model gets {', '.join(others)}, which does not have one row for every prompt"
    unknown = [
        *(part for part in processors if type(part) not in ROW_BY_ROW),
        *(part for part in criteria if type(part) not in _ENDINGS),
    ]
    if unknown:
        return f"{', '.join(sorted({type(part).__name__ for part in unknown}))} may use other rows or their places"
    cache = inputs.get(CACHE_INPUT)
    if not isinstance(cache, DynamicCache) or cache.offloading:
        return f"rows cannot be removed from a cache of the type {type(cache).__name__}"
    if cache.get_seq_length() > 0:
        return "the caller passed a cache that is not empty"
    return _why_not_cache(cache)


def is_in_parts(model: nn.Module) -> bool:
    """Return whether weights are sharded over ranks (ZeRO-3, FSDP), as in `generate` for its `synced_gpus`."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return False
    return torch.distributed.get_world_size() > 1 and (is_deepspeed_zero3_enabled() or is_fsdp_managed_module(model))


def dropout_attributes(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Yield the attributes that hold dropout probabilities, as (module, name).

    They are in dropout layers, and in plain numbers of modules (`attention_dropout` of Llama and similar models), which
    TRL's `disable_dropout` ignores.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            yield module, "p"
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                yield module, name


def drops_out(model: nn.Module) -> bool:
    """Return whether `model` drops values at random in its current mode, so that rows of the same prompt differ."""
    return any(module.training and getattr(module, name) > 0.0 for module, name in dropout_attributes(model))


def _why_not_cache(cache: Cache) -> str | None:
    others = sorted({type(layer).__name__ for layer in cache.layers if type(layer) not in _LAYERS})
    return f"rows cannot be removed from a cache with {', '.join(others)}" if others else None
