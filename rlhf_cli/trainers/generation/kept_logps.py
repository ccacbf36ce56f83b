"""The log-probabilities of sampled tokens from generation, and the adapters that produced them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from rlhf_cli.decoding.suited import drops_out

_Adapters = frozenset[tuple[tuple[str, ...], bool]]


@dataclass(frozen=True)
class KeptLogps:
    """(B, C) float32 `logps`, 0 after a row's end, and the active adapters; they are only valid for these adapters."""

    logps: Tensor
    adapters: _Adapters

    @classmethod
    def of(cls, model: nn.Module, logps: Tensor) -> KeptLogps:
        """Return the log-probabilities of `model` in its current state."""
        return cls(logps, _adapters_in_use(model))

    def is_of(self, model: nn.Module, num_rows: int) -> bool:
        """Return whether these belong to `num_rows` rows of `model` in its current state."""
        return len(self.logps) == num_rows and _adapters_in_use(model) == self.adapters

    def padded(self, num_tokens: int) -> Tensor:
        """Return (B, num_tokens), padded or cut: a round is as long as its longest row, and may be padded further."""
        missing = num_tokens - self.logps.shape[1]
        return nn.functional.pad(self.logps, (0, missing)) if missing > 0 else self.logps[:, :num_tokens]


def computes_as_it_samples(model: nn.Module, mixed_precision: str) -> bool:
    """Return whether a pass over a whole row equals sampling it, up to float32 rounding.

    In half precision, the two differ by some per cent of a token's probability, and the update is compared with TRL's
    pass. With dropout, the pass uses a different, thinned model.
    """
    is_float32 = all(one.dtype is torch.float32 for one in model.parameters() if one.is_floating_point())
    return mixed_precision == "no" and is_float32 and not drops_out(model)


def _adapters_in_use(model: nn.Module) -> _Adapters:
    layers = [layer for layer in model.modules() if isinstance(layer, BaseTunerLayer)]
    return frozenset((tuple(layer.active_adapters), layer.disable_adapters) for layer in layers)
