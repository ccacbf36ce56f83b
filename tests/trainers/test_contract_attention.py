"""What packed rows need of attention: a kernel of variable lengths in torch, and what transformers gives `sdpa`."""

from __future__ import annotations

import inspect
import re

import pytest
import torch
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, LlamaConfig, LlamaModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rlhf_cli.models.packing.row_attention import _MORE_THAN_CAUSAL
from tests.support.reference_varlen import ReferenceVarlen


def test_torch_has_the_kernel() -> None:
    """packing/varlen_kernel.py passes seven positional and three keyword arguments; so does the reference."""
    parameters = inspect.signature(varlen_attn).parameters
    by_place = ["query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k"]
    assert list(parameters)[:7] == by_place
    by_name = {name: parameters[name].default for name in ("scale", "window_size", "enable_gqa")}
    assert by_name == {"scale": None, "window_size": (-1, -1), "enable_gqa": False}
    assert "(-1, 0) for causal" in (varlen_attn.__doc__ or "")
    ours = inspect.signature(ReferenceVarlen.__call__).parameters
    assert [name for name in ours if name != "self"] == [*by_place, *by_name]
    assert all(ours[name].kind is parameters[name].kind for name in [*by_place, *by_name])


def test_torch_s_kernel_says_where_it_is_not() -> None:
    """The trial of a pass takes a RuntimeError for that; on a CPU there is none."""
    one, ends = torch.randn(2, 1, 8, dtype=torch.bfloat16), torch.tensor([0, 2], dtype=torch.int32)
    with pytest.raises(RuntimeError, match="_flash_attention_forward"):
        varlen_attn(one, one, one, ends, ends, 2, 2, window_size=(-1, 0))


def test_transformers_sdpa_knows_what_is_looked_for() -> None:
    """packing/row_attention.py attends row by row if any of them is given."""
    parameters = set(inspect.signature(sdpa_attention_forward).parameters)
    source = inspect.getsource(sdpa_attention_forward)
    named = parameters - {"module", "query", "key", "value", "attention_mask", "kwargs"}
    every = {"dropout", "scaling", "is_causal", "position_bias"}
    assert every <= named <= every | {"cache"}, "another argument changes the result"  # transformers 5.24 has no cache
    read = {*re.findall(r'kwargs\.get\("(\w+)"', source), *re.findall(r'kwargs\["(\w+)"\]', source)}
    assert "output_attentions" in read, "the source is read wrongly"
    assert read <= {"softcap", "output_attentions", "dropout", "scale", "enable_gqa"}, "another argument is read"
    assert set(_MORE_THAN_CAUSAL) <= named | read | {"cache", "softcap"}


def test_a_layer_gives_it_by_name() -> None:
    """Layers that pass them by position would attend row by row."""
    given: list[tuple[int, set[str]]] = []

    def attention(_module: object, query: torch.Tensor, *others: object, **named: object) -> tuple[torch.Tensor, None]:
        given.append((len(others), set(named)))
        return query.transpose(1, 2), None

    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaModel(LlamaConfig(vocab_size=8, **shape))
    before = ALL_ATTENTION_FUNCTIONS["sdpa"]
    AttentionInterface.register("sdpa", attention)
    try:
        model(input_ids=torch.tensor([[1, 2]]), packed_rows="seen")
    finally:
        AttentionInterface.register("sdpa", before)
    ((num_by_place, names),) = given
    assert num_by_place == 3  # key, value, mask
    assert {"dropout", "scaling", "packed_rows"} <= names
