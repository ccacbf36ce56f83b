"""Counted weights against published numbers and against the models that transformers and peft build."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
)

from rlhf_cli.models.weight_shapes import WeightShape, damaged_weights, is_target, stored_shapes, unlike_config
from rlhf_cli.plan.memory_tensors import LLAMA_LIKE, NF4_BYTES, Decoder, UnknownArchitecture, decoder_of, stored_decoder
from rlhf_cli.text.json_values import JsonTree

SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")


def config_of(family: str, vocabulary: int, *sizes: int) -> JsonTree:
    return {"model_type": family, "vocab_size": vocabulary, **dict(zip(SIZES, sizes, strict=True))}


LLAMA_2_7B = config_of("llama", 32000, 4096, 11008, 32, 32, 32)
LLAMA_3_8B = config_of("llama", 128256, 4096, 14336, 32, 32, 8)
QWEN_2_5_HALF = config_of("qwen2", 151936, 896, 4864, 24, 14, 2) | {"tie_word_embeddings": True}
QWEN_3_SMALL = config_of("qwen3", 151936, 1024, 3072, 28, 16, 8) | {"tie_word_embeddings": True}
"""Its config.json has head_dim 128, which is Qwen 3's default."""
SHAPE = {"vocab_size": 130, "head_dim": 24, **dict(zip(SIZES, (64, 176, 3, 4, 2), strict=True))}
MATRICES = 3 * (64 * 96 + 2 * 64 * 48 + 96 * 64 + 3 * 64 * 176)
"""Of SHAPE: queries and outputs of 4 heads, keys and values of 2, and the MLP's three."""


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (LLAMA_2_7B, 6_738_415_616),
        (LLAMA_3_8B, 8_030_261_248),
        (QWEN_2_5_HALF, 494_032_768),
        (QWEN_3_SMALL, 596_049_920),
    ],
    ids=["Llama-2-7b", "Meta-Llama-3-8B", "Qwen2.5-0.5B", "Qwen3-0.6B"],
)
def test_the_published_number_of_weights_but_for_norms_and_biases(config: JsonTree, published: int) -> None:
    model = decoder_of(config)
    assert model.matrix_weights + model.embedding_weights == pytest.approx(published, rel=1e-3)


@pytest.mark.parametrize("family", LLAMA_LIKE)
@pytest.mark.parametrize("tied", [False, True], ids=["head", "tied"])
def test_every_matrix_that_transformers_builds(family: str, tied: bool) -> None:
    """Of a language model, of a model that scores, and of peft's adapter on all layers."""
    config = CONFIG_MAPPING[family](
        **SHAPE, tie_word_embeddings=tied, num_labels=1, bos_token_id=0, eos_token_id=0, pad_token_id=0
    )
    decoder = decoder_of(config.to_dict())
    with torch.device("meta"):
        policy = AutoModelForCausalLM.from_config(config)
        scorer = AutoModelForSequenceClassification.from_config(config)
        adapted = get_peft_model(policy, LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear"))
    for built, model in ((policy, decoder), (scorer, replace(decoder, scores=True))):
        there = sum(
            weight.numel() for name, weight in built.named_parameters() if weight.dim() == 2 and "lora" not in name
        )
        assert model.matrix_weights == MATRICES
        assert model.trained_weights == MATRICES + model.embedding_weights == there
    trained = sum(weight.numel() for weight in adapted.parameters() if weight.requires_grad)
    with_lora = replace(decoder, lora_rank=4)
    assert with_lora.trained_weights == with_lora.adapter_weights == trained


def test_heads_that_config_json_does_not_describe() -> None:
    """As many key heads as heads, as wide as the model allows; 128 in Qwen 3."""
    plain: JsonTree = {"model_type": "llama"} | {name: QWEN_2_5_HALF[name] for name in ("vocab_size", *SIZES[:-1])}
    assert (decoder_of(plain).queries, decoder_of(plain).keys) == (14 * 64, 14 * 64)
    assert decoder_of(plain | {"model_type": "qwen3"}).queries == 14 * 128
    assert decoder_of(plain | {"head_dim": 7, "num_key_value_heads": 3}).keys == 21


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"model_type": "mamba2"}, "model_type mamba2"),
        ({}, "model_type None"),
        ({"model_type": "llama"}, "no hidden_size"),
    ],
)
def test_an_unknown_shape_is_not_guessed(config: JsonTree, why: str) -> None:
    with pytest.raises(UnknownArchitecture, match=why):
        decoder_of(config)


def test_bytes_of_weights_by_hand() -> None:
    """QLoRA, arXiv 2305.14314, section 3: quantised scales take 0.127 bits a weight. The embedding stays in 2 bytes."""
    assert pytest.approx(4 + 0.127, abs=0.001) == 8 * NF4_BYTES == 4 + 8 / 64 + 32 / (64 * 256)
    model = Decoder("llama", 8, 3, 8, 4, 16, 100, ties_head=False, weight_bytes=2.0)
    matrices, embedding = 3 * (8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 16), 2 * 100 * 8
    assert model.loaded_bytes == 2 * (matrices + embedding)
    assert replace(model, quantized_bytes=0.5).loaded_bytes == 0.5 * matrices + 2 * embedding
    adapter = 2 * 3 * (16 + 2 * 12 + 16 + 3 * 24)
    assert replace(model, quantized_bytes=0.5, lora_rank=2).loaded_bytes == (0.5 * matrices + 2 * (embedding + adapter))


def test_the_stored_dtype_is_that_of_the_largest_weight(tmp_path: Path) -> None:
    """A head may have another dtype. Without weights the dtype is that of config.json, else float32."""
    config = tmp_path / "config.json"
    for dtype, stored in (("bfloat16", 2.0), ("float32", 4.0), (None, 4.0)):
        config.write_text(json.dumps(LLAMA_2_7B | {"dtype": dtype}))
        assert stored_decoder(str(tmp_path), Path) == replace(decoder_of(LLAMA_2_7B), weight_bytes=stored)
    config.write_text(json.dumps(LLAMA_2_7B | {"torch_dtype": "float16"}))
    assert stored_decoder(str(tmp_path), Path).weight_bytes == 2.0
    save_file({"body": torch.zeros(9, dtype=torch.bfloat16), "score": torch.zeros(2)}, tmp_path / "model.safetensors")
    config.write_text(json.dumps(LLAMA_2_7B | {"dtype": "float32"}))
    assert stored_decoder(str(tmp_path), Path).weight_bytes == 2.0


def test_stored_bytes_are_those_of_torch(tmp_path: Path) -> None:
    floats = (torch.float8_e4m3fn, torch.float64, torch.float32, torch.float16, torch.bfloat16)
    whole = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
    tensors = {str(dtype): torch.zeros(2, 3, dtype=dtype) for dtype in (*floats, *whole)}
    save_file(tensors, tmp_path / "model.safetensors")
    found = stored_shapes(tmp_path)
    assert found is not None
    assert {one.name: (one.shape, one.element_bytes) for one in found} == {
        name: ((2, 3), tensor.element_size()) for name, tensor in tensors.items()
    }
    file = tmp_path / "model.safetensors"
    assert damaged_weights(tmp_path) is None
    for content, damage in ((b"version https://git-lfs.github.com/spec/v1", "git lfs pull"), (b"", "no safetensors")):
        file.write_bytes(content)
        assert damage in str(damaged_weights(tmp_path))
    save_file({}, file)
    assert (damaged_weights(tmp_path), stored_shapes(tmp_path)) == (None, None)


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "gpt2", "gpt_neox", "bloom", "t5gemma", "mllama", "hrm_text"])
def test_weights_that_do_not_fit_their_config(family: str) -> None:
    """transformers' own models fit. A model of several stacks, or with more rows than tokens, is not judged by them."""
    config = CONFIG_MAPPING[family]()
    text = json.loads(getattr(config, "text_config", config).to_json_string(use_diff=False))
    kind = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(family) or MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES[family]
    with torch.device("meta"):
        tensors = getattr(transformers, kind)(config).state_dict()
    shapes = [WeightShape(name, tuple(tensor.shape), 4) for name, tensor in tensors.items()]
    assert unlike_config(shapes, text) is None
    layers = "n_layer" if "n_layer" in text else "num_hidden_layers"
    more = unlike_config(shapes, text | {layers: text.get(layers, 0) + 1})
    judged = family not in ("t5gemma", "hrm_text")
    assert more == (f"config.json has {text[layers] + 1} layers, the weights have {text[layers]}" if judged else None)
    without = {key: value for key, value in text.items() if key != layers}
    assert unlike_config(shapes, without) is None
    without["architectures"] = [kind]
    if judged:
        assert unlike_config(shapes, without) == f"config.json has no number of layers, the weights have {text[layers]}"
    if judged and family != "mllama":
        size = text["vocab_size"]
        told = [unlike_config(shapes, text | {"pad_token_id": number}) for number in (None, -1, size - 1, size)]
        assert told == [None] * 3 + [f"config.json has pad_token_id {size}, and vocab_size {size}"]
        one_more = f"config.json has vocab_size {size + 1}, the embedding has {size} rows"
        for element_bytes, told in ((4, one_more), (2, one_more), (1, None)):  # a quantised one may be packed
            stored = [replace(shape, element_bytes=element_bytes) for shape in shapes]
            assert unlike_config(stored, text | {"vocab_size": size + 1}) == told


@pytest.mark.parametrize(
    ("name", "targets", "expected"),
    [
        *((name, ["k_proj", "q_proj"], True) for name in ("q_proj", "model.layers.0.self_attn.q_proj")),
        *((name, ["q_proj"], False) for name in ("xq_proj", "q_proj.weight", "layers.0.k_proj")),
        *((name, r"model\.layers\.\d\.q_proj", True) for name in ("model.layers.0.q_proj", "layers.0.q_proj")),
        *(("model.layers.0.q_proj", pattern, False) for pattern in ("q_proj", "model.layers", "(")),
    ],
)
def test_a_module_that_peft_adapts(name: str, targets: str | list[str], expected: bool) -> None:
    """A list holds ends of names, a text is a pattern for a whole one, which the model has and a file may shorten."""
    assert is_target(name, targets) is expected


def test_an_adapters_shape_is_that_of_its_base(tmp_path: Path) -> None:
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    base.mkdir()
    adapter.mkdir()
    (base / "config.json").write_text(json.dumps(LLAMA_2_7B))
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "acme/base"}))
    folders = {"acme/adapter": adapter, "acme/base": base}
    assert stored_decoder("acme/adapter", folders.get).ffn == 11008
    with pytest.raises(UnknownArchitecture, match="acme/other is on the hub and not on this machine"):
        stored_decoder("acme/other", folders.get)
    for content in ("no JSON", "[]"):
        (base / "config.json").write_text(content)
        with pytest.raises(UnknownArchitecture, match="has no config"):
            stored_decoder("acme/base", folders.get)
    with pytest.raises(UnknownArchitecture):
        stored_decoder(str(tmp_path), Path)
