"""A packed pass gives every row the states and gradients that it has alone, unpadded.

Rows attend one after the other, or with one kernel call for all: `ReferenceVarlen` replaces torch's kernel, which needs
a GPU. Two prompts have 4 tokens and differ in the last one, others have 1 and 2; answers have 3, 1, 2, 4 and no token.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from rlhf_cli.models.packing import row_attention
from rlhf_cli.models.packing.packed_rows import PackedRows, packed_rows
from rlhf_cli.models.packing.row_attention import (
    Heads,
    heads_of,
    heads_of_model,
    joined_keys,
    model_inputs,
    register,
    varlen_attend,
    why_no_varlen,
)
from rlhf_cli.trainers.forward_pass import only_states
from tests.support.float64 import in_float64
from tests.support.reference_varlen import ReferenceVarlen, stand_in
from tests.support.tolerances import EXACT, assert_equal, distance

SHAPE: dict[str, Any] = {
    **{"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3},
}
FAMILIES: dict[str, Any] = {"llama": {}, "qwen2": {}, "qwen3": {"head_dim": 8}, "mistral": {"sliding_window": None}}
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


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> ReferenceVarlen:
    return stand_in(monkeypatch)


@pytest.fixture(params=["row by row", "at once"])
def calls(request: pytest.FixtureRequest) -> list[Any] | None:
    """The calls of the kernel for all rows, or None if rows attend one after the other."""
    return request.getfixturevalue("kernel").calls if request.param == "at once" else None


def laid_out() -> PackedRows:
    rows = packed_rows(*padded(), 4, with_last=True)
    assert rows is not None
    return rows


def states(model: Any, **inputs: object) -> Tensor:
    return model.model(**inputs, use_cache=False).last_hidden_state


def alone(model: Any) -> Tensor:
    """Return the states of every row's own part, computed for each row alone."""
    found = []
    for prompt, answer in zip(PROMPTS, ANSWERS, strict=True):
        whole = states(model, input_ids=torch.tensor([[*prompt, *answer]]))[0]
        found.append(whole[len(prompt) - 1 :])
    return torch.cat(found)


def model_of(family: str, dtype: torch.dtype = torch.float64) -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **SHAPE, **FAMILIES[family])
    model = AutoModelForCausalLM.from_config(config).to(dtype).eval()
    return in_float64(model) if dtype is torch.float64 else model


def test_no_input_of_a_model_changes_where_numbers_are_halved() -> None:
    """FSDP and DeepSpeed cast the inputs that are floating-point numbers, and a mask that is cast is refused."""
    inputs = model_inputs(laid_out()).values()
    assert not [value for value in inputs if isinstance(value, Tensor) and value.is_floating_point()]


@pytest.mark.parametrize("family", FAMILIES)
def test_states_equal_those_of_each_row_alone(family: str, calls: list[Any] | None) -> None:
    """Every family has two key heads for four; scales, norms and biases differ."""
    model, rows = model_of(family), laid_out()
    found = states(model, **model_inputs(rows))[0, rows.states(with_last=True)]
    assert_equal(found, alone(model))
    assert calls is None or len(calls) == 2  # one call per layer


def enable_checkpointing(model: Any, given: dict[str, Any]) -> None:
    """Compute layers again in the backward pass."""
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=given)
    else:  # an older transformers
        model.gradient_checkpointing_enable(given)
    assert model.is_gradient_checkpointing


@pytest.mark.parametrize("checkpointing", [None, {"use_reentrant": False}, {"use_reentrant": True}], ids=str)
def test_gradients_equal_those_of_the_rows_alone(checkpointing: dict[str, Any] | None, calls: list[Any] | None) -> None:
    """Also if layers are computed again in the backward pass, in which no context of the forward pass is open."""
    model, rows = model_of("llama"), laid_out()
    weights = torch.randn(rows.states(with_last=True).shape[0], 32, dtype=torch.float64)
    (alone(model) * weights).sum().backward()
    expected = [weight.grad.clone() for weight in model.model.parameters()]
    model.zero_grad()
    if checkpointing is not None:
        enable_checkpointing(model, checkpointing)
        model.enable_input_require_grads()
    found = states(model.train(), **model_inputs(rows))[0, rows.states(with_last=True)]
    (found * weights).sum().backward()
    pairs = zip((weight.grad for weight in model.model.parameters()), expected, strict=True)
    assert max(distance(packed, wanted) for packed, wanted in pairs) < EXACT
    assert calls is None or calls


def test_negative_control_rows_that_see_their_neighbours_have_other_states(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = model_of("llama"), laid_out()
    monkeypatch.setattr(row_attention, "_cut", lambda segments, *qkv: [(qkv, None)])
    found = states(model, **model_inputs(rows))[0, rows.states(with_last=True)]
    assert distance(found, alone(model)) > 0.1


def test_a_padded_pass_is_unchanged_to_the_last_bit() -> None:
    model = model_of("llama", torch.float32)
    ids, mask = padded()
    ours = states(model, input_ids=ids, attention_mask=mask)
    registered = row_attention.ALL_ATTENTION_FUNCTIONS["sdpa"]
    row_attention.AttentionInterface.register("sdpa", registered.__wrapped__)  # type: ignore[attr-defined]
    try:
        assert torch.equal(states(model, input_ids=ids, attention_mask=mask), ours)
        register()
        register()  # a second call changes nothing
        assert row_attention.ALL_ATTENTION_FUNCTIONS["sdpa"].__wrapped__ is registered.__wrapped__  # type: ignore[attr-defined]
    finally:
        row_attention.AttentionInterface.register("sdpa", registered)


def test_the_layout_of_segments_by_hand() -> None:
    """Prompts have 3 and 2 tokens; rows of 4, 1 and 2 tokens continue the first, the second and no prompt."""
    joined = joined_keys([3, 2, 4, 1, 2], [0, 1, None], torch.device("cpu"))
    assert joined.cu_queries.tolist() == [0, 3, 5, 9, 10, 12]
    assert joined.cu_keys.tolist() == [0, 3, 5, 12, 15, 17]
    assert joined.places.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 5, 6, 7, 8, 3, 4, 9, 10, 11]
    assert (joined.max_queries, joined.max_keys) == (4, 7)
    assert joined.cu_queries.dtype == joined.cu_keys.dtype == torch.int32


@pytest.mark.parametrize(
    "more",
    [{"dropout": 0.5}, {"is_causal": False}, {"position_bias": torch.ones(1, 4, 5, 5)}, {"softcap": 30.0}],
    ids=lambda more: next(iter(more)),
)
def test_with_arguments_that_the_kernel_lacks_rows_attend_one_by_one(
    more: dict[str, Any], kernel: ReferenceVarlen
) -> None:
    given: list[dict[str, Any]] = []

    def attention(_module: Any, query: Tensor, *_: Any, **named: Any) -> tuple[Tensor, None]:
        given.append(named)
        return query.transpose(1, 2), None

    rows = packed_rows(torch.tensor([[5, 6, 7]]), torch.ones(1, 3, dtype=torch.long), 1)
    assert rows is not None
    query = torch.randn(1, 4, sum(rows.lengths), 8)
    segments = row_attention.Segments(rows)
    attend = row_attention._by_row(attention)
    attend(torch.nn.Identity(), query, query, query, segments.given, packed_rows=segments, **more)
    assert (given, kernel.calls) == ([more] * len(rows.lengths), [])
    attend(torch.nn.Identity(), query, query, query, segments.given, packed_rows=segments, dropout=0.0, scaling=0.3)
    assert len(kernel.calls) == 1  # control: without them the kernel is called
    for other in (None, torch.ones_like(segments.given)):
        with pytest.raises(ValueError, match="its own attention mask"):
            attend(torch.nn.Identity(), query, query, query, other, packed_rows=segments)


def test_only_the_states_that_were_asked_for_leave_the_backbone() -> None:
    model, ids = model_of("llama"), torch.tensor([[5, 6, 7], [8, 9, 10]])
    whole = states(model, input_ids=ids)
    with only_states(model, torch.tensor([1, 5])):
        assert_equal(states(model, input_ids=ids), torch.stack([whole[0, 1], whole[1, 2]])[None])
    assert states(model, input_ids=ids).shape == whole.shape


# When one kernel attends for all rows.


GPU = Heads(torch.device("cuda", 0), torch.bfloat16, 64)


@pytest.mark.parametrize(
    ("changed", "capability", "why"),
    [
        *(({}, capability, None) for capability in ((8, 0), (9, 0), (10, 0))),
        ({}, (7, 5), "7.5"),
        *((more, (9, 0), None) for more in ({"dtype": torch.float16}, {"size": 256})),
        *(({"device": torch.device("cpu")}, (9, 0), "cpu"), ({"dtype": torch.float32}, (9, 0), "float32")),
        *(({"size": size}, (9, 0), str(size)) for size in (264, 20)),
    ],
    ids=str,
)
def test_the_settings_that_the_kernel_supports(
    changed: dict[str, Any], capability: tuple[int, int], why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    found = why_no_varlen(GPU._replace(**changed))
    assert found is None if why is None else why in str(found)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_configuration_gives_the_heads_that_reach_a_layer(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the start of a run reports what its layers do. Only Qwen 3's configuration has the size of its heads."""
    seen: set[Heads] = set()
    monkeypatch.setattr(row_attention, "why_no_varlen", lambda heads: seen.add(heads) or "asked")
    model = model_of(family, torch.float32)
    states(model, **model_inputs(laid_out()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states(model, **model_inputs(laid_out()))
    expected = {heads_of_model(model, torch.device("cpu"), dtype) for dtype in (torch.float32, torch.bfloat16)}
    assert seen == expected


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_key_heads", [1, 2, 4])
def test_torchs_kernel_and_its_gradients_on_a_gpu(
    dtype: torch.dtype, num_key_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two prompts and four rows: more tokens than a tile of the kernel, a single one, and a row without a prompt."""
    lengths, shared = [150, 3, 1, 140, 2, 70], [0, 0, 1, None]
    shapes = [(1, heads, sum(lengths), 64) for heads in (4, num_key_heads, num_key_heads)]
    drawn, found = [torch.randn(shape) for shape in shapes], []
    for device in ("cuda", "cpu"):
        given = [tensor.to(device, dtype).requires_grad_() for tensor in drawn]
        if device == "cpu":
            monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", ReferenceVarlen())
        output = varlen_attend(joined_keys(lengths, shared, torch.device(device)), *given, scaling=0.2)
        output.float().square().sum().backward()
        found.append([output, *(tensor.grad for tensor in given)])
    for ours, expected in zip(*found, strict=True):
        assert distance(ours.float().cpu(), expected.float()) < 0.05  # another mask or scale: 0.6


def test_the_kernel_computes_in_the_dtype_of_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """With float32 weights, a norm of queries makes them float32, and values stay bfloat16: SDPA also casts."""
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", ReferenceVarlen())
    query, key = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8)
    joined = joined_keys([3], [None], torch.device("cpu"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = varlen_attend(joined, query, key, key.bfloat16(), scaling=None)
        assert heads_of(query).dtype is found.dtype is torch.bfloat16
    assert heads_of(query).dtype is torch.float32
