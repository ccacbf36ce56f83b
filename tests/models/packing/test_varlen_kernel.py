"""One kernel call for all rows equals one call per row: layout, heads, scale and gradients, with a reference kernel.

No machine of ours had a GPU: what is tested here is everything but torch's kernel, which `ReferenceVarlen` stands for.
Two prompts of 4 and 1 tokens (3 and none without the last), one apart in its last token and one of its own; answers
of 3, 1, 2, 4 and no token.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForSequenceClassification

from rlhf_cli.models.packing import row_attention
from rlhf_cli.models.packing.packed_rows import packed_rows
from rlhf_cli.models.packing.row_attention import model_inputs, register
from rlhf_cli.models.packing.varlen_kernel import Heads, disable_varlen, joined_keys, why_wrong
from rlhf_cli.models.reward_model_scorer import packed_scores
from tests.models.packing.test_row_attention import (
    CHECKPOINTING,
    FAMILIES,
    SHAPE,
    alone,
    enable_checkpointing,
    farthest_gradient,
    laid_out,
    model_of,
    states,
)
from tests.support.float64 import in_float64
from tests.support.reference_varlen import ReferenceVarlen, stand_in
from tests.support.tolerances import EXACT, assert_equal


@pytest.fixture(autouse=True)
def kernel(monkeypatch: pytest.MonkeyPatch) -> ReferenceVarlen:
    register()
    return stand_in(monkeypatch)


def test_where_segments_lie() -> None:
    """Segments of 3 and 2 places are prompts; rows of 4, 1 and 2 continue the first, the second and none.

    By hand: queries begin at 0, 3, 5, 9, 10 and end at 12; keys are 3, 2, 3 + 4, 2 + 1 and 2.
    """
    joined = joined_keys([3, 2, 4, 1, 2], [0, 1, None], torch.device("cpu"))
    assert joined.cu_queries.tolist() == [0, 3, 5, 9, 10, 12]
    assert joined.cu_keys.tolist() == [0, 3, 5, 12, 15, 17]
    assert joined.places.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 5, 6, 7, 8, 3, 4, 9, 10, 11]
    assert (joined.max_queries, joined.max_keys) == (4, 7)
    assert joined.cu_queries.dtype == joined.cu_keys.dtype == torch.int32


@pytest.mark.parametrize("family", FAMILIES)
def test_states_are_those_of_the_row_alone(family: str, kernel: ReferenceVarlen) -> None:
    """Of every family with two key heads for four, and scales, norms and biases of its own."""
    model, rows = model_of(family), laid_out()
    found = states(model, **model_inputs(rows))[0, rows.states_around()]
    assert_equal(found, alone(model))
    assert len(kernel.calls) == 2  # one call per layer


@CHECKPOINTING
def test_gradients_are_those_of_the_rows_alone(checkpointing: dict[str, Any] | None, kernel: ReferenceVarlen) -> None:
    """Of all weights: a prompt's keys collect what each of its rows gives them, in the same order on any device."""
    assert farthest_gradient(checkpointing) < EXACT
    assert kernel.calls


def test_ungrouped_heads_need_no_argument_for_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.11 lacks `enable_gqa`: heads that are not grouped go at once there, grouped ones do not."""

    class Older(ReferenceVarlen):
        def __call__(self, *args: Any, scale: float | None = None, window_size: tuple[int, int] = (-1, -1)) -> Tensor:
            return super().__call__(*args, scale=scale, window_size=window_size)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", Older())
    heads = Heads(torch.device("cpu"), torch.bfloat16, num_heads=4, num_key_heads=4, size=8)
    assert why_wrong(heads) is None
    assert "enable_gqa" in (why_wrong(replace(heads, num_key_heads=2)) or "")


def test_a_layer_is_computed_again_as_it_was(kernel: ReferenceVarlen) -> None:
    """Also where the kernel was found wrong in between, by another model: a checkpoint wants the same tensors again."""
    model, rows = model_of("llama").train(), laid_out()
    enable_checkpointing(model, {"use_reentrant": False})
    found = states(model, **model_inputs(rows))
    disable_varlen("found wrong")
    found.sum().backward()
    assert len(kernel.calls) == 2 * 2  # layers, forward and again
    states(model, **model_inputs(rows))
    assert len(kernel.calls) == 2 * 2  # the next pass attends row by row


def test_scores_are_those_of_texts_alone(kernel: ReferenceVarlen) -> None:
    """A reward model's, which computes in inference mode: two texts begin with the same ten tokens."""
    torch.manual_seed(0)
    model = LlamaForSequenceClassification(LlamaConfig(**SHAPE, num_labels=1, pad_token_id=0)).eval()
    in_float64(model)
    texts = [[*range(2, 12), 20], [*range(2, 12), 21, 22], [30, 31]]
    with torch.inference_mode():
        expected = torch.cat([model(input_ids=torch.tensor([text])).logits[:, 0] for text in texts])
        assert_equal(packed_scores(model, texts), expected)
    assert kernel.calls == [10 + 1 + 2 + 2] * 2


@pytest.mark.parametrize(
    "more",
    [{"dropout": 0.5}, {"is_causal": False}, {"position_bias": torch.ones(1, 4, 5, 5)}, {"softcap": 30.0}],
    ids=lambda more: next(iter(more)),
)
def test_what_the_kernel_has_no_word_for_goes_a_row_each(more: dict[str, Any], kernel: ReferenceVarlen) -> None:
    asked: list[dict[str, Any]] = []

    def attention(_module: Any, query: Tensor, *_: Any, **named: Any) -> tuple[Tensor, None]:
        asked.append(named)
        return query.transpose(1, 2), None

    rows = packed_rows(torch.tensor([[5, 6, 7]]), torch.ones(1, 3, dtype=torch.long), 1)
    assert rows is not None
    query = torch.randn(1, 4, sum(rows.lengths), 8)
    segments = row_attention.Segments(rows)
    attend = row_attention._by_row(attention)
    attend(torch.nn.Identity(), query, query, query, segments.given, packed_rows=segments, **more)
    assert asked == [more] * len(rows.lengths)
    assert not kernel.calls
    attend(torch.nn.Identity(), query, query, query, segments.given, packed_rows=segments, dropout=0.0, scaling=0.3)
    assert len(kernel.calls) == 1  # control: without it they go at once
