"""Decode only unfinished rows: the loop that `generate` gets as its `custom_generate`.

transformers decodes every row until the longest ends. Here a prompt is read once for all its rows, and an ended row
leaves batch and cache. transformers still defines the scores of tokens and the end of rows: `generate` prepares both
before it calls this loop. Every row draws the same random numbers as in transformers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import torch
from torch import FloatTensor, LongTensor, Tensor
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from rlhf_cli.decoding.causal_model import CausalModel
from rlhf_cli.decoding.live_batch import LiveBatch
from rlhf_cli.decoding.same_draws import draw
from rlhf_cli.decoding.score_changes import of_rows
from rlhf_cli.decoding.suited import drops_out, why_not_call, why_not_model, why_not_settings

_MOST_ENDED = 1 / 8
"""Allowed share of ended rows in a batch.

0 copies the cache whenever a row ends, which in large batches is at every token; from 0 to 1/4 the time is the same
(docs/performance.md).
"""


class Unsuited(Exception):
    """Raised before the first pass if rows may not leave the batch; its text is the reason."""


@dataclass
class Slots:
    """What a model has read: `prompt` slots with padding, `decoded` slots of one token each; `tokens` were kept."""

    prompt: int = 0
    decoded: int = 0
    tokens: int = 0


@dataclass
class LiveRows:
    """Called by `generate` instead of its own loop; raise Unsuited if that is not possible.

    With `logps_temperature`, keep the sampled tokens' log-probabilities as (rows, new tokens) float32, 0 after an end,
    for `take_logps`. They are of the model's own distribution at that temperature, without penalties and cut-offs, as
    TRL computes a policy's. `slots` are counted over all calls.
    """

    logps_temperature: float | None = None
    slots: Slots = field(default_factory=Slots)
    _logps: Tensor | None = None

    @torch.no_grad()
    def __call__(
        self,
        model: CausalModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **inputs: object,
    ) -> Tensor:
        """Return (rows, prompt and new tokens), padded after an end, like transformers' own loop."""
        why = (
            why_not_model(model)
            or why_not_settings(generation_config)
            or why_not_call(model, len(input_ids), logits_processor, stopping_criteria, inputs)
        )
        if why is not None:
            raise Unsuited(why)
        num_rows, width = input_ids.shape
        longest = stopping_criteria.max_length
        assert longest is not None  # generate sets it
        pad = generation_config._pad_token_tensor
        padding = 0 if pad is None else int(pad)
        found = input_ids.new_full((num_rows, longest - width), padding)
        logps = input_ids.new_zeros(found.shape, dtype=torch.float32)
        batch, processors = LiveBatch(model, input_ids, inputs, longest=longest), logits_processor
        step, num_live = 0, num_rows
        with model._optimize_model_for_decode():
            logits, num_read = batch.read_prompts(once_each=not drops_out(model))
            self.slots.prompt += num_read * width
            while True:
                tokens, its_logps = self._choose(logits, batch, processors, generation_config, num_rows)
                live = batch.rows if num_live == len(batch.rows) else batch.rows[batch.is_live]
                found[live, step] = tokens if num_live == len(batch.rows) else tokens[batch.is_live]
                if its_logps is not None:
                    logps[live, step] = its_logps if num_live == len(batch.rows) else its_logps[batch.is_live]
                batch.append(tokens.where(batch.is_live, padding))
                self.slots.tokens, step = self.slots.tokens + num_live, step + 1
                batch.is_live &= ~stopping_criteria(cast(LongTensor, batch.ids), None)
                num_live = int(batch.is_live.sum())
                if not num_live:
                    break
                if len(batch.rows) - num_live > _MOST_ENDED * len(batch.rows):
                    processors = of_rows(processors, batch.drop_ended())
                self.slots.decoded += len(batch.rows)
                logits = batch.read_tokens()
        self._logps = None if self.logps_temperature is None else logps[:, :step]
        return torch.cat([input_ids, found[:, :step]], dim=1)

    def take_logps(self) -> Tensor | None:
        """Return and forget the log-probabilities of the last call; None if there are none."""
        taken, self._logps = self._logps, None
        return taken

    def _choose(
        self,
        logits: Tensor,
        batch: LiveBatch,
        processors: LogitsProcessorList,
        config: GenerationConfig,
        num_rows: int,
    ) -> tuple[Tensor, Tensor | None]:
        """Return (N,) tokens, and their log-probabilities if they are kept."""
        raw = None
        if self.logps_temperature is not None:
            # before a processor modifies the logits in place
            raw = (logits / self.logps_temperature).log_softmax(dim=-1)
        scores = processors(cast(LongTensor, batch.ids), cast(FloatTensor, logits))
        is_drawn = config.do_sample
        tokens = draw(scores.softmax(-1), batch.rows, num_rows) if is_drawn else scores.argmax(dim=-1)
        return tokens, None if raw is None else raw.gather(1, tokens.unsqueeze(1)).squeeze(1)
