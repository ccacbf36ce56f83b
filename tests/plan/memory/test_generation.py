"""The estimate for generation compared with torch's allocations, and our loop with transformers' own."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from rlhf_cli.models.live_generation import Generating
from rlhf_cli.plan.memory_tensors import Decoder, generating_bytes

ROWS, GROUP, PROMPT, EOS = 16, 4, 8, 1
WIDTH, FFN, HEADS = 64, 128, 4
SHAPES = {"KV cache": (64, 72, 3), "logits": (20_000, 4, 2)}
"""What takes most -> the vocabulary, the new tokens, the layers."""


def allocated_bytes(shape: str, *, ends: bool = False, is_plain: bool = False, **settings: Any) -> int:
    """The largest sum of what was allocated less what was freed; rows end at EOS, or none before the last token."""
    words, new, layers = SHAPES[shape]
    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "intermediate_size": FFN, "num_hidden_layers": layers, "num_attention_heads": HEADS}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=words, tie_word_embeddings=False, **sizes)).eval()
    model.generation_config.eos_token_id = EOS if ends else None
    ids = torch.randint(2, words, (ROWS // GROUP, PROMPT)).repeat_interleave(GROUP, 0)
    generating = Generating(is_plain=is_plain)
    config = GenerationConfig(
        do_sample=True, top_k=0, max_new_tokens=new, pad_token_id=0, disable_compile=True, **settings
    )
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        found = generating.generate(
            model.generate, input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config
        )
    assert generating.mode is not None
    assert generating.mode.name == ("plain" if is_plain else "live")
    assert (found[:, PROMPT:] == EOS).any() if ends else found.shape[1] == PROMPT + new
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]  # type: ignore[union-attr]
    return max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_estimate_where_no_row_ends_early(shape: str) -> None:
    """Negative control: without the part that is most of it, it would be too little."""
    words, new, layers = SHAPES[shape]
    model = Decoder("llama", WIDTH, layers, WIDTH, WIDTH, FFN, words, ties_head=False)
    counted = generating_bytes(model, ROWS, PROMPT, PROMPT + new)
    held = allocated_bytes(shape, is_plain=True, temperature=0.7)
    assert held == pytest.approx(sum(counted.values()), rel=0.15)
    assert held > 1.15 * (sum(counted.values()) - counted[shape])


@pytest.mark.whole
def test_rows_that_have_ended_take_their_cache_with_them() -> None:
    """One token of 64 ends a row: half of the rows are gone after 44 of 72."""
    assert allocated_bytes("KV cache", ends=True) < 0.75 * allocated_bytes("KV cache")
    assert allocated_bytes("KV cache", ends=True, is_plain=True) > 0.9 * allocated_bytes("KV cache", is_plain=True)
