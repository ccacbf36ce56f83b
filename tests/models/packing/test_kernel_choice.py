"""When one kernel attends for all rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlhf_cli.models.packing import row_attention
from rlhf_cli.models.packing.row_attention import (
    Heads,
    heads_of,
    heads_of_model,
    joined_keys,
    varlen_attend,
    why_no_varlen,
)
from tests.models.packing.test_row_attention import FAMILIES, laid_out, model_of, states
from tests.support.reference_varlen import ReferenceVarlen
from tests.support.tolerances import distance

GPU = Heads(torch.device("cuda", 0), torch.bfloat16, 64)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """An H100."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))


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
    row_attention.register()
    model = model_of(family, torch.float32)
    states(model, **row_attention.model_inputs(laid_out()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states(model, **row_attention.model_inputs(laid_out()))
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
