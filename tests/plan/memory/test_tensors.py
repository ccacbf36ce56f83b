"""Bytes of activations, head and cache: by hand, against what autograd saves, and against torch's memory tracker.

At the end the estimate is compared with a generation, and with whole processes of scripts/bench/memory.py.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.profiler import ProfilerActivity, profile
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM
from trl.kernels import ChunkedLogProbFunction

from rlhf_cli.models.live_generation import Generating
from rlhf_cli.models.packing.packed_rows import packed_rows
from rlhf_cli.models.packing.row_attention import model_inputs, register
from rlhf_cli.plan.memory_estimate import most_prompts
from rlhf_cli.plan.memory_tensors import (
    LLAMA_LIKE,
    Batch,
    Decoder,
    decoder_of,
    generating_bytes,
    kept_bytes,
    layer_bytes,
    logits_bytes,
    passing_bytes,
)
from scripts.bench.memory import in_a_process, make_place
from tests.plan.memory.test_shapes import LLAMA_2_7B, LLAMA_3_8B, SHAPE

ROWS, TOKENS, RANK = 2, 64, 4
LEFT_OUT = 0.02
"""Of all that is kept: rotary angles, one number a norm and token."""
SMALL = Decoder("llama", 8, 3, 8, 4, 16, 100, ties_head=False)
"""Queries of 8 numbers, keys of 4."""


def model_of(family: str, precision: str, *, lora: bool = False) -> tuple[nn.Module, Decoder]:
    config = CONFIG_MAPPING[family](**SHAPE, bos_token_id=0, eos_token_id=0, pad_token_id=0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    model = model.bfloat16() if precision == "bfloat16" else model.float()
    if lora:
        settings = LoraConfig(task_type="CAUSAL_LM", r=RANK, target_modules="all-linear")
        get_peft_model(model, settings, autocast_adapter_dtype=False).enable_input_require_grads()
    number = 2.0 if precision == "bfloat16" else 4.0
    decoder = decoder_of(config.to_dict())
    return model, replace(decoder, weight_bytes=number, autocast=precision == "autocast", lora_rank=RANK * lora)


def saved_bytes(model: nn.Module, autocast: bool, **inputs: object) -> int:
    """Bytes of every storage that a pass of a model's body saves and that is no parameter's."""
    own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        model.base_model(**inputs, use_cache=False)  # type: ignore[operator]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}
    return sum(size for place, size in storages.items() if place not in own)


def counted_bytes(model: Decoder, batch: Batch) -> float:
    """What the layers keep, with autocast's copies of the weights, without what goes on to the head."""
    to_the_head = batch.size * model.hidden * model.weight_bytes
    copies = 2 * (model.matrix_weights + model.adapter_weights) * model.casts
    return kept_bytes(model, batch, checkpointing=False) - to_the_head + copies


CASES = [
    *((family, "float32", padded, False) for family in LLAMA_LIKE for padded in (False, True)),
    *(
        (family, how, True, lora)
        for family in ("llama", "qwen3")
        for how in ("bfloat16", "autocast")
        for lora in (0, 1)
    ),
    *((family, "float32", False, True) for family in ("llama", "qwen3")),
]


@pytest.mark.parametrize(("family", "precision", "padded", "lora"), CASES)
def test_a_layer_keeps_what_is_counted(family: str, precision: str, padded: bool, lora: bool) -> None:
    """With an adapter, what its own small matrices read is left out as well."""
    model, counted = model_of(family, precision, lora=lora)
    ids, mask = torch.randint(2, 100, (ROWS, TOKENS)), torch.ones(ROWS, TOKENS, dtype=torch.int64)
    mask[0, :3] = 0 if padded else 1
    real = saved_bytes(model, precision == "autocast", input_ids=ids, attention_mask=mask)
    batch = Batch(ROWS, TOKENS, padded)
    assert counted_bytes(counted, batch) == pytest.approx(real, rel=0.07 if lora else LEFT_OUT)
    if padded and not lora:  # negative control: a tenth of the MLP, or the masks, would be noticed
        less = replace(counted, ffn=int(0.9 * counted.ffn))
        for count in (counted_bytes(less, batch), counted_bytes(counted, replace(batch, padded=False))):
            assert count != pytest.approx(real, rel=LEFT_OUT)


@pytest.mark.parametrize(("family", "precision"), [("llama", "float32"), ("llama", "autocast"), ("qwen3", "bfloat16")])
def test_packed_rows_keep_what_is_counted(family: str, precision: str) -> None:
    """2 prompts of 24 tokens and 6 rows of 40 more; each row joins the keys of its prompt with its own."""
    model, counted = model_of(family, precision)
    prompts = torch.randint(2, 100, (2, 24)).repeat_interleave(3, dim=0)
    ids = torch.cat([prompts, torch.randint(2, 100, (6, 40))], dim=1)
    rows = packed_rows(ids, torch.ones_like(ids), 40)
    assert rows is not None
    register()
    real = saved_bytes(model, precision == "autocast", **model_inputs(rows))
    batch = Batch(6, 64, prompts=2, prompt_tokens=24)
    assert batch.size == 2 * 24 + 6 * 40
    assert counted_bytes(counted, batch) == pytest.approx(real, rel=0.03)
    assert counted_bytes(counted, replace(batch, prompts=6)) > 1.1 * real  # negative control: no prompt shared


def test_a_layer_by_hand() -> None:
    """3 rows of 5 tokens of a Llama of width 8, with 2 heads of 4 and one of keys, and an MLP of 16; float32."""
    whole, padded = Batch(3, 5, padded=False), Batch(3, 5)
    a_token = 4 * (2 * 8 + 2 * 8 + 2 * 8) + 4 * (2 * 8 + 2 * 4 + 4 * 16)  # norms in and out, inputs; q, k, v, o; MLP
    assert layer_bytes(SMALL, whole) == 15 * a_token
    assert layer_bytes(SMALL, padded) == 15 * (a_token + 4 * 2 * 4) + 4 * 3 * 5 * 5  # keys for every head, masks
    assert layer_bytes(replace(SMALL, lora_rank=2), whole) == 15 * (a_token - 4 * 2 * 8)
    assert layer_bytes(replace(SMALL, autocast=True), whole) == 15 * (
        4 * 4 * 8 + 2 * 5 * 8 + 2 * (2 * 8 + 2 * 4 + 4 * 16)
    )
    qwen3 = replace(SMALL, family="qwen3")
    assert layer_bytes(qwen3, whole) == 15 * (a_token + 12 * 8)
    assert layer_bytes(replace(qwen3, lora_rank=1), whole) == 15 * (a_token - 4 * 2 * 8 + 12 * 4)
    assert kept_bytes(SMALL, whole, checkpointing=False) == 3 * 15 * a_token + 15 * 3 * 8 * 4
    assert kept_bytes(SMALL, whole, checkpointing=True) == 3 * 15 * 8 * 4 + 15 * 3 * 8 * 4


def test_passes_by_hand() -> None:
    """In 2 bytes: three of the MLP's width, one of the model's and two of those in float32. No autocast to generate."""
    a_pass = 15 * (2 * (3 * 16 + 8) + 2 * 4 * 8)
    assert passing_bytes(replace(SMALL, autocast=True), 15) == a_pass
    assert generating_bytes(replace(SMALL, weight_bytes=2.0), 3, 5, 9)["activations"] == a_pass
    assert generating_bytes(replace(SMALL, autocast=True), 3, 5, 9) == generating_bytes(SMALL, 3, 5, 9)


@pytest.mark.parametrize("group", [1, 3, 4, 8])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 6, 8, 12])
def test_prompts_of_a_part_of_whole_groups(rows: int, group: int) -> None:
    """Against a list of 24 groups, cut into parts: the most that any of them has."""
    prompts = [number // group for number in range(24 * group)]
    parts = [prompts[start : start + rows] for start in range(0, len(prompts) - rows + 1, rows)]
    assert most_prompts(rows, group) == max(len(set(part)) for part in parts)


@pytest.mark.parametrize(
    ("config", "a_token"), [(LLAMA_2_7B, 512 * 1024), (LLAMA_3_8B, 128 * 1024)], ids=["every head", "8 for 32"]
)
def test_the_cache_of_a_token(config: dict[str, object], a_token: int) -> None:
    """Half a mebibyte in 2 bytes for Llama 2 7B, so 2 GiB for 4096 tokens; a quarter with 8 heads of keys for 32."""
    model = replace(decoder_of(config), weight_bytes=2.0)  # type: ignore[arg-type]
    assert generating_bytes(model, 1, 0, 1)["KV cache"] == a_token
    assert generating_bytes(model, 3, 9, 4096)["KV cache"] == 3 * 4096 * a_token
    assert generating_bytes(model, 3, 9, 4096)["logits"] == 3 * model.vocabulary * (2 + 4 * 4)


HEAD_TOKENS, HEAD_HIDDEN, TILE_WORDS = 16, 8, 32768


def head_peak(words: int, *, learns: bool) -> int:
    """Bytes of the largest moment of a head, without what is given to it, by torch's tracker of operations."""
    hidden = torch.randn(HEAD_TOKENS, HEAD_HIDDEN, requires_grad=True)
    weight = torch.randn(words, HEAD_HIDDEN, requires_grad=True)
    targets = torch.randint(0, words, (HEAD_TOKENS,))
    tracker = MemTracker()
    tracker.track_external(hidden, weight, targets)
    with tracker:
        outputs = ("log_probs", "entropy")
        found = ChunkedLogProbFunction.apply(hidden, weight, None, targets, 1.0, TILE_WORDS, None, 1.0, outputs)
        if learns:
            found[0].sum().backward()
    peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    return int(peak) - sum(tensor.untyped_storage().nbytes() for tensor in (hidden, weight, targets))


@pytest.mark.parametrize("learns", [False, True], ids=["forward", "gradient"])
def test_the_heads_peak(learns: bool) -> None:
    words = TILE_WORDS + 1000
    model = Decoder("llama", HEAD_HIDDEN, 1, HEAD_HIDDEN, HEAD_HIDDEN, 1, words, ties_head=False)
    counted = logits_bytes(model, HEAD_TOKENS, learns=learns, on_gpu=False)
    assert counted == pytest.approx(head_peak(words, learns=learns), rel=0.02)


def test_the_head_by_hand() -> None:
    """1000 words of width 8, an adapter below them."""
    narrow = replace(SMALL, vocabulary=1024, weight_bytes=2.0, lora_rank=1)
    whole = replace(narrow, lora_rank=0)

    def size(tokens: int, *, learns: bool = True, on_gpu: bool = False) -> float:
        return logits_bytes(narrow, tokens, learns=learns, on_gpu=on_gpu)

    assert size(65537) == 8.25 * 4 * 4096 * 1024
    assert size(65537, learns=False) == 4 * 4 * 4096 * 1024
    assert size(100) == 8.25 * 4 * 100 * 1024
    assert size(100, on_gpu=True) == 2 * 100 * 32768  # its buffer is as wide as it may ever need
    assert size(5000, on_gpu=True) == 2 * 4096 * 32768
    for learns in (False, True):
        more = logits_bytes(whole, 100, learns=learns, on_gpu=True) - 2 * 100 * 32768
        assert more == (4 * 1024 * 8 if learns else 0)


SAMPLED, GROUP, PROMPT, EOS = 16, 4, 8, 1
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
    ids = torch.randint(2, words, (SAMPLED // GROUP, PROMPT)).repeat_interleave(GROUP, 0)
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
    counted = generating_bytes(model, SAMPLED, PROMPT, PROMPT + new)
    held = allocated_bytes(shape, is_plain=True, temperature=0.7)
    assert held == pytest.approx(sum(counted.values()), rel=0.15)
    assert held > 1.15 * (sum(counted.values()) - counted[shape])


@pytest.mark.whole
def test_rows_that_have_ended_take_their_cache_with_them() -> None:
    """One token of 64 ends a row: half of the rows are gone after 44 of 72."""
    assert allocated_bytes("KV cache", ends=True) < 0.75 * allocated_bytes("KV cache")
    assert allocated_bytes("KV cache", ends=True, is_plain=True) > 0.9 * allocated_bytes("KV cache", is_plain=True)


AT_MOST, AT_LEAST = 1.15, 0.9


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    make_place(place)
    return place


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GRPO, gradient checkpointing", "SFT"])
def test_the_estimate_is_what_is_measured(models: Path, name: str) -> None:
    """Within 15 %, and never 10 % below: peaks of generation and of training, of a Llama of 42 million parameters."""
    found = in_a_process(name, models, "cpu")
    estimated, measured = (max(found[which].values()) for which in ("estimated", "measured"))
    print(f"{name}: estimated {estimated / 1e6:.0f} MB, measured {measured / 1e6:.0f}, {estimated / measured - 1:+.1%}")
    assert AT_LEAST * measured < estimated < AT_MOST * measured
    for phase, size in found["estimated"].items():
        if size:
            assert AT_LEAST * found["measured"][phase] < size < AT_MOST * found["measured"][phase], phase
    weights = found["plan"]["fullest"]["training"]["parts_bytes"]["weights"]
    assert not AT_LEAST * measured < estimated - 2 * weights < AT_MOST * measured  # without Adam it would be seen
