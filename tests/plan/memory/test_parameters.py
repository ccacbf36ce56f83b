"""Counts held against what others published: parameters of known models, the cache of a token, ZeRO's figure 1."""

from __future__ import annotations

import pytest

from rlhf_cli.plan.memory.models_of_run import Sharing, held, optimizer_bytes, weights_bytes
from rlhf_cli.plan.memory.parts import cache_bytes
from rlhf_cli.plan.memory.shapes import (
    NF4_BYTES,
    Parameters,
    Precision,
    UnknownArchitecture,
    adapted,
    architecture_of,
    count_adapter,
    count_parameters,
)
from rlhf_cli.text.json_values import JsonTree

LLAMA_2_7B: JsonTree = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}
LLAMA_3_8B = LLAMA_2_7B | {"intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 128256}
GPT2: JsonTree = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "vocab_size": 50257,
    "n_positions": 1024,
}
QWEN_2_5_HALF: JsonTree = {
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
}
QWEN_3_SMALL = QWEN_2_5_HALF | {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
GIBIBYTE = 2**30


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (LLAMA_2_7B, 6_738_415_616),
        (LLAMA_3_8B, 8_030_261_248),
        (GPT2, 124_439_808),
        (QWEN_2_5_HALF, 494_032_768),
        (QWEN_3_SMALL, 596_049_920),
    ],
    ids=["Llama-2-7b", "Meta-Llama-3-8B", "gpt2", "Qwen2.5-0.5B", "Qwen3-0.6B"],
)
def test_the_published_number_of_parameters(config: JsonTree, published: int) -> None:
    """As the safetensors of the models on the hub say them."""
    assert count_parameters(architecture_of(config)).total == published


def test_a_reward_models_head_takes_the_place_of_the_language_models() -> None:
    """Llama 2: 32000 rows of 4096 go, one comes."""
    arch = architecture_of(LLAMA_2_7B)
    assert count_parameters(arch).total - count_parameters(arch, head=1).total == (32000 - 1) * 4096


def test_an_adapter_of_rank_8_on_queries_and_values() -> None:
    """The LoRA paper's choice on Llama 2 7B: 32 layers of two pairs of (8, 4096) matrices, 4.19 million."""
    arch = architecture_of(LLAMA_2_7B)
    assert count_adapter(arch, 8, ["q_proj", "v_proj"]) == 32 * 2 * (8 * 4096 + 4096 * 8) == 4_194_304
    assert len(adapted(arch, "all-linear")) == 7
    assert adapted(arch, "self_attn.q_proj") == {}  # a text is a pattern for a whole name


@pytest.mark.parametrize(
    ("targets", "matrices"),
    [
        (["self_attn.q_proj"], 32),  # a name in a list is the end of a module's
        (["layers.0.self_attn.q_proj"], 1),
        (r".*\.(q|v)_proj", 64),
        (r".*layers\.(0|1)\.self_attn\.[qv]_proj", 4),
        ("q_proj", 0),
    ],
)
def test_an_adapter_sits_where_peft_would_put_it(targets: str | list[str], matrices: int) -> None:
    """peft's LoraConfig: of a text "a regex match will be performed", of a list "either an exact match [...] or it is
    checked if the name of the module ends with any of the passed strings". Every matrix here is 4096 by 4096.
    """
    assert count_adapter(architecture_of(LLAMA_2_7B), 8, targets) == matrices * 8 * (4096 + 4096)


@pytest.mark.parametrize(
    ("config", "a_token"), [(LLAMA_2_7B, 512 * 1024), (LLAMA_3_8B, 128 * 1024)], ids=["every head", "8 for 32"]
)
def test_the_cache_of_a_token(config: JsonTree, a_token: int) -> None:
    """Half a mebibyte in 2 bytes for Llama 2 7B, so 2 GiB for 4096 tokens; a quarter with 8 heads of keys for 32."""
    arch = architecture_of(config)
    assert cache_bytes(arch, 1, 1, 2) == a_token
    assert cache_bytes(arch, 3, 4096, 2) == 3 * 4096 * a_token


@pytest.mark.parametrize(
    ("strategy", "gigabytes"), [("zero1", 31.4), ("zero2", 16.6), ("zero3", 1.9)], ids=["P_os", "P_os+g", "P_os+g+p"]
)
def test_figure_1_of_zero(strategy: str, gigabytes: float) -> None:
    """Rajbhandari et al., arXiv 1910.02054, figure 1: 7.5 thousand million parameters on 64 devices, Adam in mixed
    precision: 120 GB where each holds everything, and so much by stage.
    """
    parameters = Parameters(7_500_000_000, 0, 0, 0)
    mixed = Precision(2.0, autocast=True)
    adam = optimizer_bytes("adamw_torch", 2.0)
    assert adam is not None
    found = held(parameters, parameters.total, mixed, adapter=0, optimizer=adam, sharing=Sharing(strategy, 64))
    assert (found.weights + found.gradients + found.optimizer) / 1e9 == pytest.approx(gigabytes, abs=0.05)


def test_adam_in_float32_is_16_bytes_a_weight_and_two_processes_have_buckets() -> None:
    """4 for the weight, 4 for its gradient, 8 for Adam (ZeRO's section 3.1); DDP keeps a copy of the gradients."""
    parameters = Parameters(1000, 0, 0, 0)
    for processes, buckets in ((1, 0.0), (2, 4000.0)):
        found = held(parameters, 1000, Precision(4.0), adapter=0, optimizer=8.0, sharing=Sharing("ddp", processes))
        assert (found.weights, found.gradients, found.optimizer) == (4000, 4000, 8000)
        assert found.buckets == buckets


def test_fsdp_trains_a_float32_copy_of_bfloat16_weights() -> None:
    """accelerate upcasts what is trained: 4 + 4 + 8 bytes a weight (ZeRO's section 3.1) over 4 processes; the 100 that
    are not trained stay at 2.
    """
    parameters, bf16 = Parameters(1000, 0, 0, 0), Precision(2.0, autocast=True)
    found = held(parameters, 900, bf16, adapter=0, optimizer=4.0, sharing=Sharing("fsdp2", 4))
    assert found.weights == (900 * 4 + 100 * 2) / 4
    assert (found.gradients, found.optimizer) == (900 * 4 / 4, 900 * 8 / 4)


def test_four_bits_are_0_127_more_by_their_scales() -> None:
    """QLoRA, arXiv 2305.14314, section 3: quantised again, scales take 0.127 bits a weight. The embedding stays."""
    assert pytest.approx(4 + 0.127, abs=0.001) == 8 * NF4_BYTES
    parameters = Parameters(1000, 100, 0, 10)
    assert weights_bytes(parameters, Precision(2.0, quantised_bytes=NF4_BYTES)) == 1000 * NF4_BYTES + 220


def test_optimizers_by_name() -> None:
    """Beside a weight of 2 bytes: AdamW as the weight, in 8 bits one byte a moment; SGD nothing; else nobody knows."""
    names = ("adamw_torch_fused", "adamw_bnb_8bit", "adafactor", "lion_8bit", "somebodys")
    assert [optimizer_bytes(name, 2.0) for name in names] == [4.0, 2.0, 0.0, 1.0, None]


@pytest.mark.parametrize("config", [{"model_type": "mamba2"}, {}, {"model_type": "llama"}])
def test_what_is_not_known_is_said(config: JsonTree) -> None:
    with pytest.raises(UnknownArchitecture):
        architecture_of(config)
