"""What the first pass of three rows finds out, and what is done then: attention a row each, then no packing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from rlhf_cli.packing import kernel_choice, row_attention
from rlhf_cli.tables.pass_modes import Passes
from rlhf_cli.trainers.passes.row_passes import RowPasses
from tests.support.reference_varlen import ReferenceVarlen, stand_in
from tests.support.same_rollouts import distance, policy, trained

pytestmark = pytest.mark.filterwarnings("ignore:.*will be removed in v6:FutureWarning")
"""TRL switches checkpointing off by names that transformers no longer likes."""

EXACT: dict[str, Any] = {"dtype": torch.float64}
PLAIN = torch.full((3, 4), -2.0)


def trying(precision: str = "no", gathered: Callable[[Tensor], Tensor] = lambda one: one) -> Any:
    trainer = object.__new__(type("Tries", (RowPasses,), {}))
    trainer.passes, trainer.model = Passes("packed"), policy()  # type: ignore[misc]
    trainer.accelerator = SimpleNamespace(
        gather=gathered, mixed_precision=precision, unwrap_model=lambda model: model, device=torch.device("cpu")
    )
    return trainer


@pytest.mark.parametrize(
    ("off", "precision", "dtype", "mode"),
    [
        (0.02, "bf16", torch.float32, "packed"),
        (0.02, "no", torch.bfloat16, "packed"),  # as `model.dtype=bfloat16` has it
        (0.02, "no", torch.float32, "trimmed"),
        (0.2, "bf16", torch.float32, "trimmed"),
        (1e-4, "no", torch.float32, "packed"),
    ],
)
def test_how_far_off_is_another_result(off: float, precision: str, dtype: torch.dtype, mode: str) -> None:
    """A hundredth is bfloat16's rounding of a logit, and no float32 is off by as much."""
    trainer = trying(precision)
    trainer.model.to(dtype)
    trainer._try(trainer.model, lambda: PLAIN, lambda: PLAIN - off)
    assert trainer.passes.mode == mode


def test_a_pass_that_raises_goes_trimmed() -> None:
    trainer = trying()

    def packed() -> Tensor:
        raise RuntimeError("no kernel image is available\nfor this device")

    trainer._try(trainer.model, lambda: PLAIN, packed)
    assert trainer.passes.describe() == "trimmed: packed, a pass raised RuntimeError: no kernel image is available"


def test_full_memory_is_none_of_it() -> None:
    trainer = trying()

    def packed() -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        trainer._try(trainer.model, lambda: PLAIN, packed)


def test_what_another_rank_saw_counts_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the kernel raised: this rank tries once more with it, and both keep what is right a row each."""
    stand_in(monkeypatch)
    others = iter([[torch.inf, 1.0], [0.0, 0.0]])
    trainer = trying(gathered=lambda one: torch.cat([one, torch.tensor([next(others)])]))
    passes: list[int] = []
    trainer._try(trainer.model, lambda: PLAIN, lambda: passes.append(1) or PLAIN)
    assert len(passes) == 2
    assert trainer.passes.describe() == "packed"
    assert kernel_choice._distrusted == ["packed with torch's varlen_attn, a pass raised on another rank"]


class TestTrainer:
    """A whole step of GRPO, in float64 on a CPU, with a kernel that stands in for a GPU's."""

    @pytest.mark.parametrize("is_reentrant", [False, True])
    def test_gradients_are_trl_s(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_reentrant: bool) -> None:
        """With activations checkpointed, a penalty and a reference."""
        kernel = stand_in(monkeypatch)
        again = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": is_reentrant}}
        expected, _ = trained(tmp_path / "trl", None, beta=0.1, **again, **EXACT)
        found, ours = trained(tmp_path / "ours", "packed", beta=0.1, **again, **EXACT)
        assert ours.passes.describe() == "packed"
        assert ours.row_attention.describe() == "all rows at once (torch's varlen_attn)"
        assert distance(found[0], expected[0]) < 1e-6
        # Two layers: a trial, the reference's four passes, and four micro-batches, forward and again in the backward.
        assert len(kernel.calls) == 2 * (1 + 4 + 2 * 4)

    @pytest.mark.parametrize(
        ("kernel", "said"),
        [
            (ReferenceVarlen(align="top left"), "its log-probabilities were "),
            (ReferenceVarlen(scale_by=3.0), "its log-probabilities were "),
            (ReferenceVarlen(error=RuntimeError("no kernel image")), "a pass raised RuntimeError: no kernel image"),
        ],
        ids=["top left", "another scale", "raises"],
    )
    def test_a_kernel_that_is_wrong_is_left_for_a_row_each(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        kernel: ReferenceVarlen,
        said: str,
    ) -> None:
        stand_in(monkeypatch, kernel)
        expected, _ = trained(tmp_path / "trl", None, **EXACT)
        found, ours = trained(tmp_path / "ours", "packed", **EXACT)
        assert ours.passes.describe() == "packed"
        assert ours.row_attention.describe().startswith(f"a row each (SDPA): packed with torch's varlen_attn, {said}")
        assert f"packed rows attend a row each: with torch's varlen_attn {said}" in caplog.text
        assert len(kernel.calls) in (0, 2)  # the trial's alone
        assert distance(found[0], expected[0]) < 1e-6

    def test_what_is_wrong_a_row_each_as_well_goes_trimmed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        stand_in(monkeypatch, ReferenceVarlen(error=RuntimeError("no kernel image")))
        monkeypatch.setattr(row_attention, "_cut", lambda segments, *qkv: [(qkv, None)])
        _, ours = trained(tmp_path, "packed", **EXACT)
        assert ours.passes.describe().startswith("trimmed: packed, its log-probabilities were ")
        assert ours.row_attention is None
        assert caplog.text.index("attend a row each") < caplog.text.index("through the model trimmed")
