"""The mode that is chosen for a model's rows, by its configuration and by a trial, and its description."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from transformers import (
    DogeConfig,
    DogeForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from rlhf_cli.errors import ModelError
from rlhf_cli.models.packing import row_attention
from rlhf_cli.models.packing.row_attention import why_not_packed
from rlhf_cli.tables.passes import Passes
from rlhf_cli.trainers.pass_mixin import chosen_passes
from tests.trainers.passes.same_rollouts import distance, policy, trained

SHAPE: dict[str, Any] = {
    **{"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2},
}
GPT2_SHAPE = GPT2Config(n_layer=1, n_embd=8, n_head=2)
WINDOWS = {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}


def eager() -> Any:
    model = policy()
    model.set_attn_implementation("eager")
    return model


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (policy, None),
        (lambda: get_peft_model(policy(), LoraConfig(target_modules=["q_proj"])), None),
        (lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)), None),
        (lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=None)), None),
        (lambda: MistralForCausalLM(MistralConfig(**SHAPE)), "its attention has a sliding window of 4096 tokens"),
        (lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE, **WINDOWS)), "it has layers of sliding_attention"),
        (lambda: policy(rope_parameters=DYNAMIC), "its rotary embeddings (dynamic) change with the longest row"),
        (lambda: GPT2LMHeadModel(GPT2_SHAPE), "its positions are learned, not rotary"),
        (eager, "its attention is eager; packed are sdpa"),
        (
            lambda: get_peft_model(policy(), PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")),
            "virtual tokens stand before every prompt",
        ),
    ],
)
def test_why_not_packed(model: Any, why: str | None) -> None:
    assert why_not_packed(model()) == why


FACTORS = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "factor": 4.0, "original_max_position_embeddings": 8}
ROPES: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 8},
    "llama3": {
        **{"factor": 4.0, "original_max_position_embeddings": 8, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    },
    "longrope": FACTORS,
}


@pytest.mark.parametrize("kind", ROPES)
def test_a_row_whose_numbers_depend_on_its_company_is_not_packed(kind: str) -> None:
    """By transformers: the states of a row of five tokens, alone and beside one of twenty, where eight were trained."""
    model = policy(rope_parameters={"rope_type": kind, "rope_theta": 1e4, **ROPES[kind]}, max_position_embeddings=8)
    ids, mask = torch.randint(2, 64, (2, 20)), torch.ones(2, 20, dtype=torch.long)
    mask[0, 5:] = 0
    with torch.no_grad():
        alone = model.model(input_ids=ids[:1, :5], use_cache=False).last_hidden_state[0]
        beside = model.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state[0, :5]
    depends = bool((alone - beside).abs().max() > 1e-3)
    assert depends == (kind in ("dynamic", "longrope"))
    why = f"its rotary embeddings ({kind}) change with the longest row"
    assert why_not_packed(model) == (why if depends else None)


def trainer_of(**changed: Any) -> Any:
    unwrapped = SimpleNamespace(unwrap_model=lambda model: model, device=torch.device("cpu"), mixed_precision="no")
    given: dict[str, Any] = {"model": policy(), "ref_model": None, "aux_loss_enabled": False, "accelerator": unwrapped}
    return SimpleNamespace(**given | {"args": SimpleNamespace(torch_compile=False)} | changed)


def test_the_fastest_way_is_taken() -> None:
    assert chosen_passes(trainer_of(), "auto") == Passes("packed")


def test_rows_are_not_packed_on_a_gpu_without_a_kernel_for_all_rows_at_once() -> None:
    """A call of attention per row and layer is slower than padding there; who asks for packed rows gets them."""
    on_gpu = SimpleNamespace(unwrap_model=lambda model: model, device=torch.device("cuda"), mixed_precision="no")
    found = chosen_passes(trainer_of(accelerator=on_gpu), "auto")
    assert found.describe() == "trimmed: packed, each row would attend by itself: it is computed in float32"
    assert chosen_passes(trainer_of(accelerator=on_gpu), "packed") == Passes("packed")


@pytest.mark.parametrize("setting", ["trimmed", "plain"])
def test_another_way_is_taken_where_it_is_asked_for(setting: Any) -> None:
    assert chosen_passes(trainer_of(), setting).mode == setting


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"critic": GPT2Model(GPT2_SHAPE)}, "trimmed: the critic: its positions are learned, not rotary"),
        (
            {"critic": policy(attention_dropout=0.1)},
            "trimmed: the critic: it drops at random in training, each row for itself",
        ),
        ({"ref_model": eager()}, "trimmed: its attention is eager; packed are sdpa"),
        ({"model": policy(attention_dropout=0.1)}, "trimmed: it drops at random in training, each row for itself"),
        ({"args": SimpleNamespace(torch_compile=True)}, "trimmed: it is compiled for rows of one shape"),
        ({"aux_loss_enabled": True}, "plain: the loss of the experts' balance counts padding"),
    ],
)
def test_what_keeps_a_trainer_from_it_is_said(changed: dict[str, Any], said: str) -> None:
    changed = dict(changed)
    critic = changed.pop("critic", None)
    assert chosen_passes(trainer_of(**changed), "auto", critic).describe() == said
    with pytest.raises(ModelError, match="rows cannot be packed") as caught:
        chosen_passes(trainer_of(**changed), "packed", critic)
    assert caught.value.where == "trainer.passes"
    assert said.partition(": ")[2] in str(caught.value)


def test_a_model_that_computes_something_else_packed_goes_trimmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As one would that does not hand arguments down to its attention: all rows see each other then."""
    monkeypatch.setattr(row_attention, "_cut", lambda segments, *qkv: [(qkv, None)])
    expected, _ = trained(tmp_path / "trl", None)
    found, ours = trained(tmp_path / "ours", "auto")
    assert ours.passes.mode == "trimmed"
    assert ours.passes.why.startswith("packed, its log-probabilities were ")
    assert "rows go through the model trimmed: packed, its" in caplog.text
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=1e-5)


def test_a_model_with_a_mask_of_its_own_goes_trimmed(tmp_path: Path) -> None:
    """Doge adds a learned bias to the mask. With small weights too little changes for the log-probabilities to tell."""
    torch.manual_seed(0)
    doge = DogeForCausalLM(DogeConfig(**SHAPE, pad_token_id=0, eos_token_id=1, initializer_range=0.02))
    alone = {"router_aux_loss_coef": 0.0}  # it is written as a mixture of experts, and has none here
    expected, _ = trained(tmp_path / "trl", None, model=copy.deepcopy(doge), **alone)
    found, ours = trained(tmp_path / "ours", "auto", model=doge, **alone)
    assert ours.passes.mode == "trimmed"
    assert "the model attends with a mask of its own (float32 (1, 4, " in ours.passes.why
    assert distance(found[0], expected[0]) < 1e-5
