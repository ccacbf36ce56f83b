"""Rollouts of ragged rows, as `gae` is given them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from rlhf_cli.numerics.gae import gae

NAN = math.nan
assert_close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)


@dataclass(frozen=True)
class Batch:
    """What `gae` is given, gamma and lam aside."""

    rewards: Tensor
    values: Tensor
    is_action: Tensor
    last_values: Tensor
    is_terminated: Tensor

    def gae(self, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
        given = {name: value for name, value in vars(self).items() if name != "is_terminated"}
        return gae(**given, is_truncated=~self.is_terminated, gamma=gamma, lam=lam)


def ragged(seed: int) -> Batch:
    """(12, 9): rows of different lengths with holes, a few without an action; values are NaN where there is none."""
    generator = torch.Generator().manual_seed(seed)
    normal = partial(torch.randn, generator=generator, dtype=torch.float64)
    lengths = torch.randint(0, 10, (12, 1), generator=generator)
    is_action = (torch.rand(12, 9, generator=generator) < (0.3, 0.7, 1.0)[seed % 3]) & (torch.arange(9) < lengths)
    return Batch(
        rewards=normal(12, 9) * 3 + 1,
        values=(normal(12, 9) * 2 - 1).masked_fill(~is_action, NAN),
        is_action=is_action,
        last_values=normal(12) * 2,
        is_terminated=torch.rand(12, generator=generator) < 0.5,
    )
