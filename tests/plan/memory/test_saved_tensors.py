"""What a forward pass keeps, counted by hand, against the tensors that autograd saves of transformers' own models."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from rlhf_cli.plan.memory.parts import Adapter, Batch, kept_bytes
from rlhf_cli.plan.memory.shapes import (
    Architecture,
    Precision,
    architecture_of,
    count_adapter,
    count_parameters,
    matrices,
)

SHAPE = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
GPT2 = {"vocab_size": 128, "n_embd": 64, "n_layer": 3, "n_head": 4, "attn_pdrop": 0, "resid_pdrop": 0, "embd_pdrop": 0}
ROWS, TOKENS, RANK = 2, 64, 4
LEFT_OUT = 0.02
"""Of all that is kept: rotary angles, one number a norm and token."""
PRECISIONS = {"float32": Precision(4.0), "bfloat16": Precision(2.0), "autocast": Precision(4.0, autocast=True)}


def model_of(family: str, precision: str) -> tuple[nn.Module, Architecture]:
    shape = GPT2 if family == "gpt2" else SHAPE
    config = CONFIG_MAPPING[family](**shape, bos_token_id=0, eos_token_id=0, pad_token_id=0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    arch = architecture_of(config.to_dict())
    assert count_parameters(arch).total == sum(one.numel() for one in model.parameters())
    return (model.bfloat16() if precision == "bfloat16" else model.float()), arch


def saved_bytes(model: nn.Module, body: nn.Module, *, padded: bool, autocast: bool) -> int:
    """Bytes of every storage that a training pass saves and that is no parameter's."""
    own = {one.untyped_storage().data_ptr() for one in model.parameters()}
    kept: list[torch.Tensor] = []
    ids = torch.randint(2, 100, (ROWS, TOKENS))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0 if padded else 1

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        body(input_ids=ids, attention_mask=mask, use_cache=False)
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in kept}
    return sum(size for place, size in storages.items() if place not in own)


def both(family: str, precision: str, *, padded: bool, lora: bool = False) -> tuple[float, float, Architecture]:
    """What is counted and what is saved, without autocast's copies of weights and what goes on to the head."""
    model, arch = model_of(family, precision)
    adapter, copies = None, count_parameters(arch).body
    body = model.base_model
    if lora:
        adapter = Adapter(RANK, tuple(matrices(arch)))
        wrapped = get_peft_model(
            model,  # type: ignore[arg-type]
            LoraConfig(task_type="CAUSAL_LM", r=RANK, target_modules="all-linear"),
            autocast_adapter_dtype=False,
        )
        wrapped.enable_input_require_grads()
        trained = sum(one.numel() for one in wrapped.parameters() if one.requires_grad)
        assert trained == count_adapter(arch, RANK, "all-linear")
        copies, body = copies + trained, model.base_model
    is_autocast = precision == "autocast"
    real = saved_bytes(model, body, padded=padded, autocast=is_autocast)  # type: ignore[arg-type]
    batch = Batch(ROWS, TOKENS, padded)
    counted = kept_bytes(arch, PRECISIONS[precision], batch, adapter=adapter, checkpointing=False)
    to_the_head = batch.size * arch.hidden * PRECISIONS[precision].weight_bytes
    return counted - to_the_head, real - 2 * copies * is_autocast, arch


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "smollm3"])
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_a_llama_keeps_what_is_counted(family: str, precision: str, padded: bool, lora: bool) -> None:
    counted, real, _ = both(family, precision, padded=padded, lora=lora)
    assert counted == pytest.approx(real, rel=LEFT_OUT)


@pytest.mark.parametrize(("precision", "rel"), [("float32", 0.02), ("bfloat16", 0.02), ("autocast", 0.05)])
def test_gpt_2_without_dropout(precision: str, rel: float) -> None:
    """Under autocast some of its numbers are copied that are not counted."""
    counted, real, _ = both("gpt2", precision, padded=True)
    assert counted == pytest.approx(real, rel=rel)


def test_negative_controls_a_count_that_leaves_something_out_is_seen() -> None:
    """The mask of padding, or a tenth of the MLP, is more than what is left out."""
    counted, real, arch = both("llama", "float32", padded=True)
    for batch, shape in (
        (Batch(ROWS, TOKENS, padded=False), arch),
        (Batch(ROWS, TOKENS), replace(arch, ffn=int(0.9 * arch.ffn))),
    ):
        less = kept_bytes(shape, PRECISIONS["float32"], batch, checkpointing=False)
        less -= batch.size * arch.hidden * 4
        assert less < counted
        assert less != pytest.approx(real, rel=LEFT_OUT)


def test_checkpointing_keeps_a_layers_input() -> None:
    """One tensor (rows, tokens, hidden) a layer and three at the top, in float32."""
    _, arch = model_of("llama", "float32")
    size = ROWS * TOKENS * arch.hidden * 4
    kept = kept_bytes(arch, PRECISIONS["float32"], Batch(ROWS, TOKENS), checkpointing=True)
    assert kept == (arch.layers + 3) * size
