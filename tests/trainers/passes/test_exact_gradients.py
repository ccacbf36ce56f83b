"""What the limits of test_same_gradients.py are made of: without float32, ours is TRL's gradient to twelve digits.

In a float64 model, too, TRL's head is computed in float32, and so are transformers' rotary positions, of which a row
that is packed has others than one padded on the left, and its norms, whose gradient a shared prompt has once for all
its rows. Here both sides have these three by their definitions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding
from trl.trainer import utils as trl_utils

from rlhf_cli.models.packing import one_pass_head
from tests.trainers.passes.same_rollouts import distance, trained

SEVERAL = {"gradient_accumulation_steps": 2, "steps_per_generation": 4, "num_iterations": 2, "max_steps": 4}
RATIOS: dict[str, dict[str, Any]] = {
    "rloo": {"trainer": "RLOO", "beta": 0.1, "num_iterations": 2, "max_steps": 2},
    "vespo": {"loss_type": "vespo", "beta": 0.1, **SEVERAL},
    "sequences": {"importance_sampling_level": "sequence", "loss_type": "grpo", "beta": 0.1, **SEVERAL},
    "tokens": {"loss_type": "dapo", "beta": 0.1, **SEVERAL},
}
"""In all but the last the log-probabilities of a whole row are summed and exponentiated, and with them their errors."""


class ExactHead:
    """Log-probabilities and entropies by the definition, in the precision of what it is given."""

    @staticmethod
    def apply(
        hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: float, *others: Any
    ) -> tuple[Tensor, Tensor, None, None, None]:
        logps = (torch.nn.functional.linear(hidden, weight, bias) / temperature).log_softmax(dim=-1)
        entropy = -(logps.exp() * logps).sum(dim=-1)
        return logps.gather(1, targets.unsqueeze(1)).squeeze(1), entropy, None, None, None


def exact_positions(rotary: LlamaRotaryEmbedding, states: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of angles position * frequency."""
    angles = position_ids.unsqueeze(-1).double() * rotary.inv_freq.double()
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().to(states.dtype), angles.sin().to(states.dtype)


def exact_norm(norm: LlamaRMSNorm, states: Tensor) -> Tensor:
    """Return states divided by the root of their mean square, times a weight."""
    return norm.weight * states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """No part computes in float32: not TRL's head, and not ours, which falls back to it above its budget."""
    monkeypatch.setattr(trl_utils, one_pass_head._SEAM, ExactHead)
    monkeypatch.setattr(one_pass_head, "MAX_SOFTMAX_BYTES", 0)
    monkeypatch.setattr(LlamaRotaryEmbedding, "forward", exact_positions)
    monkeypatch.setattr(LlamaRMSNorm, "forward", exact_norm)


def worst(found: list[Tensor], expected: list[Tensor]) -> float:
    return max(distance(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("name", RATIOS)
def test_without_rounding(tmp_path: Path, name: str) -> None:
    settings = {"dtype": torch.float64, **RATIOS[name]}
    expected, _ = trained(tmp_path / "trl", None, **settings)
    for passes in ("packed", "trimmed"):
        found, made = trained(tmp_path / passes, passes, **settings)
        assert made.passes.mode == passes
        assert worst(found, expected) < 1e-12
