"""Which biases a config.json asks for, against the models that transformers builds of it."""

from __future__ import annotations

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from rlhf_cli.plan.memory.shapes import LLAMA_LIKE, architecture_of, count_parameters

SHAPE = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
ASKED = [{}, {"mlp_bias": True}, {"attention_bias": True}, {"mlp_bias": True, "attention_bias": True}]


@pytest.mark.parametrize("family", LLAMA_LIKE)
def test_every_bias_is_counted_and_no_other(family: str) -> None:
    """Families differ in which of the two keys they read: a Mistral has no biases, whatever its config.json says."""
    counts = []
    for asked in ASKED:
        config = CONFIG_MAPPING[family](**SHAPE, **asked, bos_token_id=0, eos_token_id=0, pad_token_id=0)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        there = sum(one.numel() for one in model.parameters())
        assert count_parameters(architecture_of({**config.to_dict(), **asked})).total == there, asked
        counts.append(there)
    # Llama with `mlp_bias`, by hand: 3 layers of 176, 176 and 64 more.
    assert counts[1] - counts[0] == (3 * (176 + 176 + 64) if family in ("llama", "smollm3") else 0)
