"""List the score processors that treat rows independently, and select their per-row state."""

from __future__ import annotations

import copy

from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation import logits_process

ROW_BY_ROW = frozenset(
    {
        logits_process.EpsilonLogitsWarper,
        logits_process.EtaLogitsWarper,
        logits_process.ExponentialDecayLengthPenalty,
        logits_process.ForcedBOSTokenLogitsProcessor,
        logits_process.ForcedEOSTokenLogitsProcessor,
        logits_process.InfNanRemoveLogitsProcessor,
        logits_process.LogitNormalization,
        logits_process.MinLengthLogitsProcessor,
        logits_process.MinNewTokensLengthLogitsProcessor,
        logits_process.MinPLogitsWarper,
        logits_process.NoBadWordsLogitsProcessor,
        logits_process.NoRepeatNGramLogitsProcessor,
        logits_process.RepetitionPenaltyLogitsProcessor,
        logits_process.SequenceBiasLogitsProcessor,
        logits_process.SuppressTokensAtBeginLogitsProcessor,
        logits_process.SuppressTokensLogitsProcessor,
        logits_process.TemperatureLogitsWarper,
        logits_process.TopHLogitsWarper,
        logits_process.TopKLogitsWarper,
        logits_process.TopPLogitsWarper,
        logits_process.TypicalLogitsWarper,
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
