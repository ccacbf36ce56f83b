"""Decide whether finished rows can leave a batch that generates.

The cache, score processors, stopping criteria and, with sharded weights, the other ranks may still need a row. A
component that is not known to treat each row independently is assumed to use all of them.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Iterator, Mapping
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
    """Return the processors for these rows only. The caller's processors are not changed."""
    kept = LogitsProcessorList()
    for one in processors:
        if isinstance(one, logits_process.RepetitionPenaltyLogitsProcessor):
            first = one.prompt_ignore_length
            if isinstance(first, Tensor):  # one position per row, after its padding
                one = copy.copy(one)
                one.prompt_ignore_length = first[rows]
        kept.append(one)
    return kept


_OF_TRANSFORMERS = (
    stopping_criteria.EosTokenCriteria,
    stopping_criteria.MaxLengthCriteria,
    stopping_criteria.MaxTimeCriteria,
)
_ENDINGS = frozenset({*_OF_TRANSFORMERS, StopCriterion})
_LAYERS = frozenset({DynamicLayer, DynamicSlidingWindowLayer})
_PREPARED = inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
CACHE_INPUT = "cache" if "cache" in _PREPARED else "past_key_values"
"""The name under which `generate` gives a model its cache; transformers renamed it in 5.24."""
_INPUTS = frozenset({"attention_mask", "position_ids", CACHE_INPUT, "use_cache", "logits_to_keep"})


def why_not_ahead(model: Any, config: GenerationConfig) -> str | None:
    """Return why rows of `model` may not leave the batch under these generation settings, or None."""
    name = type(model).__name__
    if model.config.is_encoder_decoder:
        return f"{name} has an encoder, whose output is kept for every row"
    if model.is_remote_code():
        return f"{name} is code that came with the model, and may generate in a way of its own"
    if not model._supports_default_dynamic_cache():
        return f"{name} keeps what it has read in a cache of its own"
    if why := _why_not_cache(DynamicCache(config=model.config.get_text_config()), name):
        return why
    refused = {
        "num_beams": (config.num_beams or 1) > 1,
        "use_cache": config.use_cache is False,
        "cache_implementation": config.cache_implementation not in (None, "dynamic"),
        "prompt_lookup_num_tokens": config.prompt_lookup_num_tokens is not None,
        "penalty_alpha": config.penalty_alpha is not None,
        "dola_layers": config.dola_layers is not None,
        "force_words_ids": config.force_words_ids is not None,
        "constraints": config.constraints is not None,
        "prefill_chunk_size": config.prefill_chunk_size is not None,
        "return_dict_in_generate": bool(config.return_dict_in_generate),
    }
    named = [f"{name}={getattr(config, name)!r}" for name, is_refused in refused.items() if is_refused]
    return f"generation with {', '.join(named)} is transformers' own" if named else None


def why_not_call(
    model: Any,
    num_rows: int,
    processors: LogitsProcessorList,
    criteria: StoppingCriteriaList,
    inputs: Mapping[str, object],
) -> str | None:
    """Return why rows may not leave, given what `generate` prepared: score processors, stopping criteria, inputs."""
    if is_in_parts(model):
        return "the weights lie in parts on several ranks, which must take every step together"
    if getattr(model.prepare_inputs_for_generation, "__self__", model) is not model:
        return "an adapter puts tokens of its own before the prompts"
    if others := sorted(name for name, value in inputs.items() if name not in _INPUTS and value is not None):
        return f"the model is given {', '.join(others)} beside its tokens"
    shapes = {name: tuple(value.shape) for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    if others := sorted(f"{name} {shape}" for name, shape in shapes.items() if len(shape) != 2 or shape[0] != num_rows):
        return f"the model is given {', '.join(others)}, and not a row of each for every row"
    if others := _unknown(processors, ROW_BY_ROW):
        return f"{', '.join(others)} may look at other rows, or remember them by their place"
    if others := _unknown(criteria, _ENDINGS):
        return f"{', '.join(others)} may look at the whole batch"
    cache = inputs.get(CACHE_INPUT)
    if not isinstance(cache, DynamicCache) or cache.offloading:
        return f"the cache is a {type(cache).__name__}, of which no rows can be taken"
    if cache.get_seq_length() > 0:
        return "the cache was given, and is not empty"
    return _why_not_cache(cache, type(model).__name__)


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


def _why_not_cache(cache: Cache, model: str) -> str | None:
    others = sorted({type(layer).__name__ for layer in cache.layers if type(layer) not in _LAYERS})
    return f"{model} has a {', '.join(others)} in its cache, of which no rows can be taken" if others else None


def _unknown(asked: Iterable[object], known: frozenset[type]) -> list[str]:
    return sorted({type(one).__name__ for one in asked if type(one) not in known})
