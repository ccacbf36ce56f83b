"""Where one kernel attends for all rows, and what a trial of it finds out; no GPU is needed: one is only spoken of."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from rlhf_cli.models.packing import row_attention, varlen_kernel
from rlhf_cli.models.packing.varlen_kernel import (
    Heads,
    disable_varlen,
    heads_of,
    heads_of_model,
    joined_keys,
    varlen_attend,
    why_no_varlen,
    why_wrong,
)
from tests.models.packing.test_row_attention import FAMILIES, laid_out, model_of, states
from tests.support.reference_varlen import ReferenceVarlen

GPU = Heads(torch.device("cuda", 0), torch.bfloat16, 4, 2, 64)
CPU = dataclasses.replace(GPU, device=torch.device("cpu"))


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in which nothing was tried yet, and an H100 whose kernel is sound."""
    monkeypatch.setattr(varlen_kernel, "_distrusted", [])
    monkeypatch.setattr(varlen_kernel, "why_wrong", lambda heads: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    varlen_kernel._why_never.cache_clear()
    yield
    varlen_kernel._why_never.cache_clear()


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, None),
        ({"dtype": torch.float16}, None),
        ({"size": 256}, None),
        ({"device": torch.device("cpu")}, "the device is cpu"),
        ({"dtype": torch.float32}, "it is computed in float32"),
        ({"size": 264}, "its heads are of size 264, and the kernels want multiples of 8 up to 256"),
        ({"size": 20}, "its heads are of size 20, and the kernels want multiples of 8 up to 256"),
    ],
    ids=str,
)
def test_where_it_can_be(changed: dict[str, object], why: str | None) -> None:
    assert why_no_varlen(dataclasses.replace(GPU, **changed)) == why  # type: ignore[arg-type]


def test_an_older_gpu_goes_a_row_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert why_no_varlen(GPU) is None
    varlen_kernel._why_never.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert why_no_varlen(GPU) == "the GPU is of compute capability 7.5, and the kernels want 8.0"


def test_a_kernel_that_fails_its_trial_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Heads] = []
    monkeypatch.setattr(varlen_kernel, "why_wrong", lambda heads: tried.append(heads) or "it is 1 off")
    for _layer in range(3):
        assert why_no_varlen(GPU) == "torch's varlen_attn was tried, and it is 1 off"
    assert tried == [GPU]
    assert why_no_varlen(CPU) == "the device is cpu"
    assert tried == [GPU]  # where it cannot be it is not tried


def test_what_a_model_found_wrong_holds_for_the_process() -> None:
    assert why_no_varlen(GPU) is None
    disable_varlen("packed with torch's varlen_attn, its log-probabilities were 3 off")
    assert why_no_varlen(dataclasses.replace(GPU, size=128)) == (
        "packed with torch's varlen_attn, its log-probabilities were 3 off"
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_heads_by_the_configuration_are_those_that_come_to_a_layer(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that what a start says of a run is what its layers do. Qwen 3 says how large its heads are, others do not."""
    seen: set[Heads] = set()
    monkeypatch.setattr(row_attention, "why_no_varlen", lambda heads: seen.add(heads) or "asked")
    row_attention.register()
    model = model_of(family, torch.float32)
    states(model, **row_attention.model_inputs(laid_out()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states(model, **row_attention.model_inputs(laid_out()))
    expected = {heads_of_model(model, torch.device("cpu"), dtype) for dtype in (torch.float32, torch.bfloat16)}
    assert seen == expected


class TestTrial:
    """The trial itself, in the bfloat16 of a CPU, with a reference kernel and with what one might do otherwise."""

    @pytest.fixture(autouse=True)
    def kernel(self, monkeypatch: pytest.MonkeyPatch) -> ReferenceVarlen:
        kernel = ReferenceVarlen()
        monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
        return kernel

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("num_key_heads", [1, 2, 4])
    def test_a_sound_kernel(self, dtype: torch.dtype, num_key_heads: int, kernel: ReferenceVarlen) -> None:
        assert why_wrong(dataclasses.replace(CPU, dtype=dtype, num_key_heads=num_key_heads)) is None
        assert len(kernel.calls) == 1

    def test_a_mask_aligned_to_the_top_left(self, kernel: ReferenceVarlen) -> None:
        kernel.align = "top left"
        assert "on random numbers it is " in (why_wrong(CPU) or "")

    def test_a_scale_that_is_not_what_was_given(self, kernel: ReferenceVarlen) -> None:
        kernel.scale_by = 64**-0.5
        assert "on random numbers it is " in (why_wrong(CPU) or "")

    @pytest.mark.parametrize("error", [RuntimeError, NotImplementedError, ValueError, TypeError])
    def test_a_torch_without_it(self, error: type[Exception], kernel: ReferenceVarlen) -> None:
        kernel.error = error("USE_FLASH_ATTENTION was not enabled for build.\nmore")
        assert why_wrong(CPU) == f"it raises {error.__name__}: USE_FLASH_ATTENTION was not enabled for build."

    def test_full_memory_is_not_a_fault_of_the_kernel_s(self, kernel: ReferenceVarlen) -> None:
        kernel.error = torch.OutOfMemoryError("CUDA out of memory")
        with pytest.raises(torch.OutOfMemoryError):
            why_wrong(CPU)

    def test_gradients_are_tried_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A kernel whose output is right and whose gradient of the keys is not: the values' part of it is left out."""
        real = ReferenceVarlen()
        monkeypatch.setattr(
            "torch.nn.attention.varlen.varlen_attn",
            lambda query, key, value, *cu, **named: real(query, key.detach() + 0 * key, value, *cu, **named),
        )
        assert "on random numbers it is 1 off" in (why_wrong(CPU) or "")

    def test_it_is_the_same_wherever_it_is_made(self, kernel: ReferenceVarlen) -> None:
        """In a checkpointed layer, without gradients, in inference mode and in autocast the result is the same."""
        saved: list[torch.Tensor] = []
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda one: saved.append(one) or one, lambda one: one)
        state = torch.get_rng_state()
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.float16):
            assert why_wrong(CPU) is None
        with torch.no_grad(), hooks:
            assert why_wrong(CPU) is None
        assert not saved
        assert kernel.dtypes == [torch.bfloat16] * 2
        assert torch.equal(torch.get_rng_state(), state)

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="wants a GPU")
    def test_torch_s_own_on_a_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.undo()
        for dtype in (torch.bfloat16, torch.float16):
            assert why_wrong(dataclasses.replace(GPU, dtype=dtype)) is None


def test_what_autocast_computes_in_is_given_to_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where weights are float32, a norm of queries makes float32 of them, and values stay bfloat16: SDPA casts, too."""
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", ReferenceVarlen())
    query, key = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8)
    joined = joined_keys([3], [None], torch.device("cpu"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = varlen_attend(joined, query, key, key.bfloat16(), scaling=None)
        assert heads_of(query, key).dtype is found.dtype is torch.bfloat16
    assert heads_of(query, key).dtype is torch.float32
