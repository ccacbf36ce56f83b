"""When one kernel attends for all rows, and which wrong kernels its trial detects; no GPU is needed."""

from __future__ import annotations

import dataclasses
from typing import Any

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
    """A process without earlier trials, and an H100 whose kernel is right."""
    monkeypatch.setattr(varlen_kernel, "_distrusted", [])
    monkeypatch.setattr(varlen_kernel, "why_wrong", lambda heads: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    varlen_kernel._why_never.cache_clear()
    yield
    varlen_kernel._why_never.cache_clear()


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
    found = why_no_varlen(dataclasses.replace(GPU, **changed))
    assert found is None if why is None else why in str(found)


def test_a_kernel_that_fails_its_trial_or_a_model_s_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Heads] = []
    monkeypatch.setattr(varlen_kernel, "why_wrong", lambda heads: tried.append(heads) or "it is 1 off")
    for _layer in range(3):
        assert "it is 1 off" in str(why_no_varlen(GPU))
    assert why_no_varlen(CPU) is not None
    assert tried == [GPU]  # once, and not on a CPU
    disable_varlen("3 off")
    assert why_no_varlen(dataclasses.replace(GPU, size=128)) == "packed with torch's varlen_attn, 3 off"


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


class TestTrial:
    """The trial on a CPU in bfloat16, with a reference kernel and with wrong ones."""

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

    @pytest.mark.parametrize("wrong", [{"align": "top left"}, {"scale_by": 64**-0.5}], ids=str)
    def test_a_wrong_mask_or_scale(self, wrong: dict[str, object], kernel: ReferenceVarlen) -> None:
        vars(kernel).update(wrong)
        assert why_wrong(CPU) is not None

    @pytest.mark.parametrize("error", [RuntimeError, NotImplementedError, ValueError, TypeError])
    def test_a_torch_without_it(self, error: type[Exception], kernel: ReferenceVarlen) -> None:
        kernel.error = error("USE_FLASH_ATTENTION was not enabled for build.\nmore")
        assert f"{error.__name__}: USE_FLASH" in str(why_wrong(CPU))

    def test_out_of_memory_is_raised(self, kernel: ReferenceVarlen) -> None:
        kernel.error = torch.OutOfMemoryError("CUDA out of memory")
        with pytest.raises(torch.OutOfMemoryError):
            why_wrong(CPU)

    def test_gradients_are_tried_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """This kernel's output is right, and its gradient of the keys is 0."""
        real = ReferenceVarlen()
        monkeypatch.setattr(
            "torch.nn.attention.varlen.varlen_attn",
            lambda query, key, value, *cu, **named: real(query, key.detach() + 0 * key, value, *cu, **named),
        )
        assert why_wrong(CPU) is not None

    def test_the_trial_does_not_depend_on_the_callers_modes(self, kernel: ReferenceVarlen) -> None:
        """It gives the same result in a checkpointed layer, without gradients, in inference mode and in autocast."""
        saved: list[torch.Tensor] = []
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor
        )
        state = torch.get_rng_state()
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.float16):
            assert why_wrong(CPU) is None
        with torch.no_grad(), hooks:
            assert why_wrong(CPU) is None
        assert not saved
        assert kernel.dtypes == [torch.bfloat16] * 2
        assert torch.equal(torch.get_rng_state(), state)

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    def test_torchs_kernel_on_a_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.undo()
        for dtype in (torch.bfloat16, torch.float16):
            assert why_wrong(dataclasses.replace(GPU, dtype=dtype)) is None


def test_the_kernel_computes_in_the_dtype_of_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """With float32 weights, a norm of queries makes them float32, and values stay bfloat16: SDPA also casts."""
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", ReferenceVarlen())
    query, key = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8)
    joined = joined_keys([3], [None], torch.device("cpu"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = varlen_attend(joined, query, key, key.bfloat16(), scaling=None)
        assert heads_of(query, key).dtype is found.dtype is torch.bfloat16
    assert heads_of(query, key).dtype is torch.float32
