"""A packed pass gives every row the states that it has alone: against the model itself, one row at a time, unpadded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rlhf_cli.models.packing import row_attention
from rlhf_cli.models.packing.packed_rows import PackedRows, packed_rows
from rlhf_cli.models.packing.row_attention import model_inputs, register
from tests.support.float64 import in_float64
from tests.support.tolerances import EXACT, assert_equal, distance

SHAPE: dict[str, Any] = {
    **{"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3},
}
FAMILIES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=8)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=None)),
}
PROMPTS = ([5, 6, 7, 8], [5, 6, 7, 8], [9], [5, 6, 7, 9], [10, 11])
ANSWERS = ([20, 21, 22], [23], [24, 25], [26, 27, 28, 29], [])


def padded() -> tuple[Tensor, Tensor]:
    ids, mask = torch.zeros((5, 8), dtype=torch.long), torch.zeros((5, 8), dtype=torch.long)
    for row, (prompt, answer) in enumerate(zip(PROMPTS, ANSWERS, strict=True)):
        for start, tokens in ((4 - len(prompt), prompt), (4, answer)):
            ids[row, start : start + len(tokens)] = torch.tensor(tokens, dtype=torch.long)
            mask[row, start : start + len(tokens)] = 1
    return ids, mask


@pytest.fixture(autouse=True)
def _registered() -> None:
    register()


def laid_out() -> PackedRows:
    rows = packed_rows(*padded(), 4, with_last=True)
    assert rows is not None
    return rows


def states(model: Any, **inputs: object) -> Tensor:
    return model.model(**inputs, use_cache=False).last_hidden_state


def alone(model: Any) -> Tensor:
    """The states of every row's own part, computed with nothing beside it."""
    found = []
    for prompt, answer in zip(PROMPTS, ANSWERS, strict=True):
        whole = states(model, input_ids=torch.tensor([[*prompt, *answer]]))[0]
        found.append(whole[len(prompt) - 1 :])
    return torch.cat(found)


def model_of(family: str, dtype: torch.dtype = torch.float64) -> Any:
    torch.manual_seed(0)
    model = FAMILIES[family]().to(dtype).eval()
    return in_float64(model) if dtype is torch.float64 else model


@pytest.mark.parametrize("family", FAMILIES)
def test_states_are_those_of_the_row_alone(family: str) -> None:
    model, rows = model_of(family), laid_out()
    found = states(model, **model_inputs(rows))[0, rows.states_around()]
    assert_equal(found, alone(model))


CHECKPOINTING = pytest.mark.parametrize(
    "checkpointing", [None, {"use_reentrant": False}, {"use_reentrant": True}], ids=str
)


def enable_checkpointing(model: Any, given: dict[str, Any]) -> None:
    """Compute layers again in the backward pass, under the name that this transformers has for it."""
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=given)
    else:  # an older transformers
        model.gradient_checkpointing_enable(given)
    assert model.is_gradient_checkpointing


def farthest_gradient(checkpointing: dict[str, Any] | None) -> float:
    """Of all weights the largest distance of a packed pass's gradient from that of the rows alone, over its norm."""
    model, rows = model_of("llama"), laid_out()
    weights = torch.randn(rows.states_around().shape[0], 32, dtype=torch.float64)
    (alone(model) * weights).sum().backward()
    expected = [one.grad.clone() for one in model.model.parameters()]
    model.zero_grad()
    if checkpointing is not None:
        enable_checkpointing(model, checkpointing)
        model.enable_input_require_grads()
    found = states(model.train(), **model_inputs(rows))[0, rows.states_around()]
    (found * weights).sum().backward()
    pairs = zip((one.grad for one in model.model.parameters()), expected, strict=True)
    return max(distance(one, other) for one, other in pairs)


@CHECKPOINTING
def test_gradients_are_those_of_the_rows_alone(checkpointing: dict[str, Any] | None) -> None:
    """Also where layers are computed again in the backward pass, in which nothing of the forward pass is open."""
    assert farthest_gradient(checkpointing) < EXACT


def test_without_the_cuts_it_is_another_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: rows that see their neighbours do not pass for rows alone."""
    model, rows = model_of("llama"), laid_out()
    monkeypatch.setattr(row_attention, "_cut", lambda segments, *qkv: [(qkv, None)])
    found = states(model, **model_inputs(rows))[0, rows.states_around()]
    assert distance(found, alone(model)) > 0.1


def test_a_pass_without_it_is_untouched() -> None:
    """What is registered gives a padded batch to transformers' function, to the last bit."""
    model = model_of("llama", torch.float32)
    ids, mask = padded()
    ours = states(model, input_ids=ids, attention_mask=mask)
    registered = row_attention.ALL_ATTENTION_FUNCTIONS["sdpa"]
    row_attention.AttentionInterface.register("sdpa", registered.__wrapped__)  # type: ignore[attr-defined]
    try:
        assert torch.equal(states(model, input_ids=ids, attention_mask=mask), ours)
        register()
        register()  # twice is once
        assert row_attention.ALL_ATTENTION_FUNCTIONS["sdpa"].__wrapped__ is registered.__wrapped__  # type: ignore[attr-defined]
    finally:
        row_attention.AttentionInterface.register("sdpa", registered)
