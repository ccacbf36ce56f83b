"""Causal models of random weights over 40 tokens, prompts of several lengths, and what transformers generates of them.

Five tokens end a row, and the weights are large, so that rows end at different places: a prompt of a group that is
decoded greedily ends where its twins end, one that is sampled where chance has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

PAD, ENDS, VOCABULARY = 0, [1, 2, 3, 4, 5], 40
_SHAPE: dict[str, Any] = {
    **{"vocab_size": VOCABULARY, "max_position_embeddings": 64, "hidden_size": 32, "intermediate_size": 64},
    **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
}
MAKE: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**_SHAPE)),
    "sliding": lambda: MistralForCausalLM(MistralConfig(**_SHAPE, sliding_window=6)),
    "mixed": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(**_SHAPE, head_dim=8, sliding_window=5, layer_types=["sliding_attention", "full_attention"])
    ),
    "learned positions": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    ),
    "recurrent": lambda: MambaForCausalLM(MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2)),
}

LENGTHS = (5, 5, 5, 9, 9, 2, 5, 1, 1, 7, 7, 7)
GROUPS = (0, 0, 0, 1, 1, 2, 3, 4, 4, 5, 5, 5)
"""The first and the fourth prompt of length 5 are two: alike are rows, not lengths."""


def model_of(kind: str) -> Any:
    """Return a model whose distributions are far from flat; the same every time."""
    torch.manual_seed(0)
    model = MAKE[kind]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3)
    return model


def prompts() -> dict[str, Tensor]:
    """Return `input_ids` and `attention_mask`, (12, 9), padded on the left."""
    ids, mask = torch.full((len(LENGTHS), 9), PAD), torch.zeros(len(LENGTHS), 9, dtype=torch.long)
    for row, (length, group) in enumerate(zip(LENGTHS, GROUPS, strict=True)):
        drawn = torch.randint(8, VOCABULARY, (length,), generator=torch.Generator().manual_seed(group))
        ids[row, 9 - length :], mask[row, 9 - length :] = drawn, 1
    return {"input_ids": ids, "attention_mask": mask}


def settings(**named: Any) -> GenerationConfig:
    """Return how to generate; by default at most 24 tokens, sampled from all but padding."""
    given = {"do_sample": True, "top_k": 0, "max_new_tokens": 24, "suppress_tokens": [PAD], "pad_token_id": PAD}
    return GenerationConfig(**{**given, **named}, eos_token_id=ENDS, disable_compile=True)
