"""Know what changes the scores of a token by its row alone, so that a row may leave, and take what it keeps of rows."""

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
"""What changes a row's scores by that row's tokens and scores alone, and keeps nothing of it for the next token."""


def of_rows(processors: LogitsProcessorList, rows: Tensor) -> LogitsProcessorList:
    """Return what changes scores, for those rows only. The processors themselves are the caller's, and stay."""
    kept = LogitsProcessorList()
    for one in processors:
        if isinstance(one, logits_process.RepetitionPenaltyLogitsProcessor):
            first = one.prompt_ignore_length
            if isinstance(first, Tensor):  # one place a row, behind its padding
                one = copy.copy(one)
                one.prompt_ignore_length = first[rows]
        kept.append(one)
    return kept
