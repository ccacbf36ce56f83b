"""The trial on three rows in the first pass: on failure attention runs per row, then packing is switched off."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from rlhf_cli.models.packing import varlen_kernel
from rlhf_cli.tables.passes import Passes
from rlhf_cli.trainers.forward_pass import Forward
from rlhf_cli.trainers.pass_mixin import PassMixin, tried_rows
from tests.support.reference_varlen import ReferenceVarlen, stand_in
from tests.trainers.passes.same_rollouts import distance, policy, trained

pytestmark = pytest.mark.filterwarnings("ignore:.*will be removed in v6:FutureWarning")
"""TRL switches checkpointing off by names that transformers no longer likes."""

EXACT: dict[str, Any] = {"dtype": torch.float64}
PLAIN = torch.full((12,), -2.0)


def trying(precision: str = "no", gathered: Callable[[Tensor], Tensor] = lambda one: one) -> Any:
    trainer = object.__new__(type("Tries", (PassMixin,), {}))
    trainer.passes, trainer.model = Passes("packed"), policy()  # type: ignore[misc]
    trainer.accelerator = SimpleNamespace(
        gather=gathered,
        mixed_precision=precision,
        unwrap_model=lambda model: model,
        device=torch.device("cpu"),
        autocast=contextlib.nullcontext,
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
    trainer._try(trainer.model, "its log-probabilities", lambda: PLAIN, lambda: PLAIN - off)
    assert trainer.passes.mode == mode


def test_a_pass_that_raises_goes_trimmed() -> None:
    trainer = trying()

    def packed() -> Tensor:
        raise RuntimeError("no kernel image is available\nfor this device")

    trainer._try(trainer.model, "its log-probabilities", lambda: PLAIN, packed)
    assert trainer.passes.describe() == "trimmed: packed, a pass raised RuntimeError: no kernel image is available"


def test_what_another_rank_saw_counts_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel raised on the other rank: both ranks try again without it, and keep packing."""
    stand_in(monkeypatch)
    others = iter([[torch.inf, 1.0], [0.0, 0.0]])
    trainer = trying(gathered=lambda one: torch.cat([one, torch.tensor([next(others)])]))
    passes: list[int] = []
    trainer._try(trainer.model, "its log-probabilities", lambda: PLAIN, lambda: passes.append(1) or PLAIN)
    assert len(passes) == 2
    assert trainer.passes.describe() == "packed"
    assert varlen_kernel._distrusted == ["packed with torch's varlen_attn, a pass raised on another rank"]


class GivesLogps:
    """Stands for TRL's trainer: tokens have a log-probability of -2, the last of a row 0, and padding 0."""

    def _get_per_token_logps_and_entropies(
        self, model: Any, ids: Tensor, mask: Tensor, keep: int, *_: Any, **__: Any
    ) -> tuple[Tensor, None, None]:
        self.tried = ids
        return torch.where(ids[:, -keep:] > 1, -2.0, 0.0), None, None


@pytest.mark.parametrize(("off", "verdict"), [(0.0025, "trimmed"), (0.0015, "packed")])
def test_the_mean_is_over_tokens(monkeypatch: pytest.MonkeyPatch, off: float, verdict: str) -> None:
    """Two tokens and 38 places of padding a row, one of the two off: half of 0.0025 is above 1e-3, and a mean over
    padding would be 1e-4. Half of 0.0015 is below, and without the token of probability 1 it would be above.
    """
    trainer: Any = trying()
    trainer.__class__ = type("Tries", (PassMixin, GivesLogps), {})
    trainer.extensions = None
    ids = torch.tensor([[5, 5, 5, 1, *[0] * 38]] * 4)
    ids[0, 2:] = 0  # a row that was left out has nothing to try

    def packed(self: Forward, ids: Tensor, mask: Tensor, keep: int, **_: Any) -> tuple[Tensor, None]:
        return torch.where(ids[:, -keep:] > 1, -2.0 - off, 0.0), None

    monkeypatch.setattr(Forward, "packed", packed)
    monkeypatch.setattr(Forward, "trimmed", packed)
    trainer._get_per_token_logps_and_entropies(trainer.model, ids, (ids > 0).long(), 40)
    assert trainer.passes.mode == verdict
    assert verdict == "packed" or trainer.passes.why == f"packed, its log-probabilities were {off / 2:.2g} off"
    assert trainer.tried[:, 2].tolist() == [5, 5, 5]


def test_which_rows_are_tried() -> None:
    """The first three rows with a completion, repeated if there are fewer, so that every row has a neighbour."""
    completions = torch.tensor([0, 1, 1, 0, 1, 1]).unsqueeze(1)
    masks = torch.cat([torch.ones(6, 2, dtype=torch.long), completions], dim=1)
    assert tried_rows(masks, 1).tolist() == [1, 2, 4]
    assert tried_rows(masks[:3], 1).tolist() == [1, 2, 0]
    assert tried_rows(masks[1:2], 1).tolist() == [0, 0, 0]


class TestTrainer:
    """A whole step of GRPO, in float64 on a CPU, with a kernel that stands in for a GPU's."""

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
        assert ours.row_attention.startswith(f"a row each (SDPA): packed with torch's varlen_attn, {said}")
        assert f"packed rows attend row by row: with torch's varlen_attn {said}" in caplog.text
        assert len(kernel.calls) in (0, 2)  # the trial's alone
        assert distance(found[0], expected[0]) < 1e-6
