"""Decode the rows that are not finished, with the draws of transformers.

transformers decodes every row until the longest ends. Here the model reads a prompt once for all its rows, and an ended
row leaves batch and cache. transformers still defines the scores of tokens and the end of rows: `generate` prepares
both before it calls this loop. The cache, score processors, stopping criteria and, with sharded weights, the other
ranks may still need an ended row; a component that is not known to treat each row by itself is assumed to need all.

For one sample per row, `torch.multinomial` draws an exponential number for every probability, row by row, and takes the
largest quotient (the exponential race: Efraimidis and Spirakis 2006). We skip the numbers of removed rows, so every row
gets the tokens that transformers would have drawn, and the generator ends in the same state.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import BoolTensor, FloatTensor, LongTensor, Tensor, nn
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedTokenizerBase, StoppingCriteriaList
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer
from transformers.generation import GenerationMixin, logits_process, stopping_criteria
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.integrations.fsdp import is_fsdp_managed_module

from rlhf_cli.process import temporary_attributes
from rlhf_cli.tables.passes import READS_IMAGES
from rlhf_cli.tables.trl_values import STOP_STRINGS

STOP_KEYS = frozenset(STOP_STRINGS.values())


class StopStrings:
    """The texts that end a row (transformers' `stop_strings`, vLLM's `stop`), and the tokenizer they are written in.

    A row that ends with one has finished, as with an end-of-sequence token. transformers pads it up to the longest row,
    and TRL would train on the padding; so rows are cut behind the text. Only the completion counts, as for vLLM: a text
    that begins in the prompt stops nothing.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> None:
        self.tokenizer, self.texts = tokenizer, tuple(texts)

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, generation_kwargs: object) -> StopStrings | None:
        """Return the stop strings of TRL's `generation_kwargs`, None without."""
        given = generation_kwargs if isinstance(generation_kwargs, Mapping) else {}
        named = next((given[key] for key in STOP_KEYS if given.get(key)), None)
        return None if named is None else cls(tokenizer, [named] if isinstance(named, str) else named)

    def length(self, ids: Sequence[int]) -> int | None:
        """Return how many tokens a completion has up to its first stop string, None without one."""

        def has_stopped(count: int) -> bool:
            text = self._text(ids[:count])
            return any(stop in text for stop in self.texts)

        return bisect_left(range(len(ids)), True, key=has_stopped) if has_stopped(len(ids)) else None

    def ends(self, ids: Sequence[int]) -> bool:
        """Return whether the last token completes a stop string; one further ahead ended an earlier turn, if any."""
        text = self._text(ids)
        before = self._text(ids[:-1]).rstrip("\ufffd")  # which stands for the first bytes of a character
        return any(stop in text and text.rfind(stop) + len(stop) > len(before) for stop in self.texts)

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    def cut(self, ids: list[int]) -> list[int]:
        """Return a completion without what comes after its first stop string."""
        return ids[: self.length(ids)]

    @functools.cached_property
    def in_transformers(self) -> stopping_criteria.StopStringCriteria:
        """Return transformers' criterion, which also finds the texts in prompts."""
        return stopping_criteria.StopStringCriteria(self.tokenizer, list(self.texts))


class StopCriterion(stopping_criteria.StoppingCriteria):
    """End a row at a stop string in its completion, after `prompt_tokens` tokens with padding; each is judged alone."""

    def __init__(self, stops: StopStrings, prompt_tokens: int) -> None:
        self._stops, self._prompt_tokens = stops, prompt_tokens

    def __call__(self, input_ids: LongTensor, scores: FloatTensor, **others: object) -> BoolTensor:
        """Return (B,) bool, True = the row has ended."""
        return cast(BoolTensor, self._stops.in_transformers(input_ids[:, self._prompt_tokens :], scores))


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
_INPUTS = frozenset({"attention_mask", "position_ids", CACHE_INPUT, "use_cache", "logits_to_keep"})


def why_not_ahead(model: Any, config: GenerationConfig) -> str | None:
    """Return why rows of `model` may not leave the batch under these generation settings, or None."""
    name = type(model).__name__
    if hasattr(model.config, "vision_config"):
        return READS_IMAGES
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
    named += [] if mode in ("greedy_search", "sample") else [mode]
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


def draw(probabilities: Tensor, rows: Tensor, num_rows: int) -> Tensor:
    """Return (N,) tokens drawn from (N, V) float32 `probabilities`; `rows` (N,) are ascending indices below `num_rows`.

    Tokens from probabilities that are not finite mean nothing: `decode` looks at their sum.
    """
    num_tokens = probabilities.shape[1]
    if probabilities.device.type != "cpu" or len(rows) == num_rows:  # an accelerator draws all faster than some
        numbers = probabilities.new_empty(num_rows, num_tokens).exponential_()
        numbers = numbers if len(rows) == num_rows else numbers[rows]
    else:
        numbers, after = torch.empty_like(probabilities), 0
        for place, row in enumerate([*rows.tolist(), num_rows]):
            # an int64 uses the same 64 bits of the generator as an exponential number, but no logarithm
            torch.empty((row - after) * num_tokens, dtype=torch.int64).random_()
            if row < num_rows:
                numbers[place].exponential_()
            after = row + 1
    return probabilities.div_(numbers).argmax(dim=-1)  # in place: a vocabulary per row needs much memory


class LiveBatch:
    """Read prompts, then one token at a time, for fewer and fewer rows: B at first, N now, L tokens each so far.

    `rows` (N,): their ascending indices among the B. `ids` (N, L): their tokens with all padding, for score processors
    and stopping criteria. `is_live` (N,) bool: has not ended; ended rows stay in the batch until `drop_ended`.
    `inputs`: the model's inputs for these rows as prepared by `generate`, including cache and masks.
    """

    def __init__(self, model: Any, ids: Tensor, inputs: dict[str, object]) -> None:
        cache = inputs[CACHE_INPUT]
        assert isinstance(cache, DynamicCache)
        self._model, self._cache, self._inputs, self.ids = model, cache, inputs, ids
        self.rows = torch.arange(len(ids), device=ids.device)
        self.is_live = torch.ones(len(ids), dtype=torch.bool, device=ids.device)

    def read_prompts(self, *, once_each: bool) -> Tensor:
        """Return (B, V) float32 logits of the first token. once_each: read equal prompts once, and copy the cache."""
        mask = self._inputs.get("attention_mask")
        seen = torch.cat([self.ids, mask], dim=1) if isinstance(mask, Tensor) else self.ids
        firsts, copies = self.rows, self.rows
        if once_each:
            numbers: dict[tuple[int, ...], int] = {}  # of each distinct prompt
            which = [numbers.setdefault(tuple(row), len(numbers)) for row in seen.tolist()]
            firsts = torch.tensor([which.index(number) for number in numbers.values()], device=seen.device)
            copies = torch.tensor(which, device=seen.device)
        alone = _rows_of(self._inputs, firsts)
        ready = self._model.prepare_inputs_for_generation(self.ids[firsts], is_first_iteration=True, **alone)
        logits = self._read(ready)
        if len(firsts) == len(self.rows):
            return logits
        self._cache.batch_select_indices(copies)
        return logits[copies]

    def read_tokens(self) -> Tensor:
        """Return (N, V) float32 logits of the next token; the model reads only the last of `ids`."""
        return self._read(self._model.prepare_inputs_for_generation(self.ids, next_sequence_length=1, **self._inputs))

    def drop_ended(self) -> Tensor:
        """Remove ended rows from batch and cache. Return the places of the others in the batch so far."""
        kept = self.is_live.nonzero().squeeze(1)
        self.rows, self.ids, self.is_live = self.rows[kept], self.ids[kept], self.is_live[kept]
        self._inputs = _rows_of(self._inputs, kept)
        self._cache.batch_select_indices(kept)
        return kept

    def _read(self, ready: dict[str, object]) -> Tensor:
        outputs = self._model(**ready, return_dict=True)
        self._inputs = self._model._update_model_kwargs_for_generation(outputs, self._inputs)
        logits: Tensor = outputs.logits[:, -1].to(copy=True, dtype=torch.float32, device=self.ids.device)
        return logits


def _rows_of(inputs: dict[str, object], rows: Tensor) -> dict[str, object]:
    """Return the rows of all tensors, and other values unchanged; the cache's rows are selected in place."""
    return {name: value[rows] if isinstance(value, Tensor) else value for name, value in inputs.items()}


_MOST_ENDED = 1 / 8
"""Allowed share of ended rows in a batch. 0 copies the cache whenever a row ends, which in large batches is at every
token; from 0 to 1/4 the time is the same (docs/development/performance.md).
"""


class NotEligible(Exception):
    """Raised before the first pass if rows may not leave the batch; its text is the reason."""


_OWN = ("assistant_model", "custom_generate", "streamer", "synced_gpus")
"""Arguments of `generate` that belong to another loop, or that our loop would never see."""
_SET = "generation is set to plain"
_REPLACED = "the model instance has another `generate`"
_LEAVES = "finished rows leave the batch, and the model reads a prompt once for all its rows"


@dataclass(frozen=True)
class GenerationMode:
    """How a model generates: `live`, or `plain` (transformers' own loop); `why` is the reason in words."""

    name: Literal["live", "plain"]
    why: str


def expected_mode(model: Any, config: GenerationConfig, *, is_plain: bool) -> GenerationMode:
    """Return how a model will generate, as far as that is known in advance."""
    own = _REPLACED if "generate" in vars(model) else None
    why = _SET if is_plain else own or why_not_ahead(model, config)
    return GenerationMode("live", _LEAVES) if why is None else GenerationMode("plain", why)


_OF_SAMPLING = (
    *("temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"),
    *("num_beams", "num_beam_groups", "diversity_penalty", "penalty_alpha", "num_return_sequences"),
)
_OF_MODEL = re.compile(r"_|(pad|bos|eos|decoder_start)_token_id$|.*cache|.*compile|prefill|continuous|transformers")
_CHOICES = {name: None for name in vars(GenerationConfig()) if not _OF_MODEL.match(name)}
"""All arguments of `generate` but a model's special tokens and how it computes."""


def greedy_arguments(arguments: Mapping[str, object]) -> dict[str, object]:
    """Return arguments of `generate` for the likeliest token: penalties and bans stay, what concerns sampling goes."""
    return {name: value for name, value in arguments.items() if name not in _OF_SAMPLING} | {"do_sample": False}


@contextlib.contextmanager
def arguments_alone(model: Any) -> Iterator[None]:
    """Open a context in which `generate` chooses tokens by its arguments alone.

    transformers takes what they leave at None from the model's own generation config: a `min_p` there would sample from
    another policy than the one whose log-probabilities are trained.
    """
    alone: dict[str, object] = {}
    if (config := getattr(model, "generation_config", None)) is not None:  # a reward model has none
        vars(plain := copy.deepcopy(config)).update(_CHOICES)
        alone["generation_config"] = plain
    # PEFT gives the model below an adapter's own to it, and leaves it there.
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    with temporary_attributes(inner, **alone), temporary_attributes(model, **alone):
        yield


@dataclass
class Generating:
    """Generate with a model; `mode` is that of the last call, None before the first.

    is_plain: always use transformers' own loop. `stops` end rows, None without stop strings.
    """

    is_plain: bool = False
    stops: StopStrings | None = None
    mode: GenerationMode | None = None

    def generate(self, stock: Callable[..., Tensor], *args: object, **named: object) -> Tensor:
        """Return what `stock`, a model's `generate`, returns for these arguments, without finished rows if possible."""
        if self.stops is not None:
            prompts = cast(Tensor, named["input_ids"])
            named["stopping_criteria"] = StoppingCriteriaList([StopCriterion(self.stops, prompts.shape[1])])
        own = ", ".join(sorted(name for name in _OWN if named.get(name)))
        why = _SET if self.is_plain else f"generate gets {own}" if own else None
        if why is None:
            try:
                found = stock(*args, **named, custom_generate=self.decode)
            except NotEligible as error:  # raised before the first forward pass or random draw
                why = str(error)
            else:
                self.mode = GenerationMode("live", _LEAVES)
                return found
        self.mode = GenerationMode("plain", why)
        return stock(*args, **named)

    @contextlib.contextmanager
    def of(self, model: Any) -> Iterator[None]:
        """Redirect `model.generate` to `self.generate` in this context, unless the instance has one of its own."""
        if "generate" in vars(model):
            self.mode = GenerationMode("plain", _REPLACED)
            yield
            return
        with temporary_attributes(model, generate=functools.partial(self.generate, model.generate)):
            yield

    @torch.no_grad()
    def decode(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **inputs: object,
    ) -> Tensor:
        """Return (rows, prompt and new tokens), padded after an end: `generate` calls this instead of its own loop.

        Raise NotEligible if rows may not leave the batch.
        """
        why = why_not_ahead(model, generation_config)
        why = why or why_not_call(model, len(input_ids), logits_processor, stopping_criteria, inputs)
        if why is not None:
            raise NotEligible(why)
        num_rows, width = input_ids.shape
        longest = stopping_criteria.max_length
        assert longest is not None  # generate sets it
        pad = generation_config._pad_token_tensor
        padding = 0 if pad is None else int(pad)
        found = input_ids.new_full((num_rows, longest - width), padding)
        batch, processors = LiveBatch(model, input_ids, inputs), logits_processor
        step, num_live = 0, num_rows
        with model._optimize_model_for_decode():
            logits = batch.read_prompts(once_each=not drops_out(model))
            while True:
                scores = processors(cast(LongTensor, batch.ids), cast(FloatTensor, logits))
                if generation_config.do_sample:
                    probabilities = scores.softmax(-1)
                    tokens, total = draw(probabilities, batch.rows, num_rows), probabilities.sum()
                else:
                    tokens, total = scores.argmax(dim=-1), scores.new_zeros(())
                live = batch.rows if num_live == len(batch.rows) else batch.rows[batch.is_live]
                found[live, step] = tokens if num_live == len(batch.rows) else tokens[batch.is_live]
                batch.ids = torch.cat([batch.ids, tokens.where(batch.is_live, padding).unsqueeze(1)], dim=1)
                step += 1
                batch.is_live &= ~stopping_criteria(cast(LongTensor, batch.ids), None)
                # The host waits for the device only here.
                live_rows, total_probability = torch.stack([batch.is_live.sum().to(total), total]).tolist()
                if not math.isfinite(total_probability):
                    torch.multinomial(torch.tensor([total_probability]), num_samples=1)  # raises torch's own error
                num_live = int(live_rows)
                if not num_live:
                    break
                if len(batch.rows) - num_live > _MOST_ENDED * len(batch.rows):
                    processors = of_rows(processors, batch.drop_ended())
                logits = batch.read_tokens()
        return torch.cat([input_ids, found[:, :step]], dim=1)
