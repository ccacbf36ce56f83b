"""Score texts with a sequence classifier in one packed row: no padding, and logits only for the last tokens.

This computes the same as transformers' decoders with a `score` head: the head's output at a row's last token that is
not the padding token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_layers import GenericForSequenceClassification

from rlhf_cli.packing.packable import why_not_packed
from rlhf_cli.packing.packed_texts import packed_texts
from rlhf_cli.packing.row_attention import model_inputs, register


def why_not_scored_packed(model: PreTrainedModel | PeftModel) -> str | None:
    """Return why texts cannot be scored packed, in words, or None if they can.

    If they can, register the attention function for packed rows.
    """
    classifier = model.get_base_model() if isinstance(model, PeftModel) else model
    if getattr(type(classifier), "forward", None) is not GenericForSequenceClassification.forward:
        return "its head is not transformers' own of decoders"
    why = why_not_packed(model)
    if why is None:
        register()
    return why


def packed_scores(model: PreTrainedModel | PeftModel, rows: Sequence[Sequence[int]]) -> Tensor:
    """Return (B,) scores of rows of tokens, whose last token is not padding; sorted rows share most prefixes."""
    classifier = cast(PreTrainedModel, model.get_base_model()) if isinstance(model, PeftModel) else model
    packed = packed_texts(rows, torch.device(classifier.device))
    states: Tensor = classifier.base_model(**model_inputs(packed), use_cache=False).last_hidden_state
    head = cast(torch.nn.Module, classifier.score)
    scores: Tensor = head(states[0, packed.last_states()])
    return scores[:, 0]
