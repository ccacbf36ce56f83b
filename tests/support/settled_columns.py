"""Columns of raw scores to settle, with the rules that they go by."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from rlhf_cli.numerics.score_scaling import RunningDeviation
from rlhf_cli.rewards.stack.reward_matrix import Settled, SettleRules, settle
from rlhf_cli.truncation import Endings, EosPenalty, Exclude

NAN = float("nan")


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@dataclass(frozen=True)
class Rule:
    name: str
    offset: float = 0.0
    clip: tuple[float, float] | None = None
    normalize: Any = "none"
    gates: tuple[Any, ...] = ()
    on_error: Any = "raise"
    weight: float = 1.0


@dataclass
class Case:
    """Settles columns of raw scores; `fixed` NaN everywhere unless given."""

    raw: list[Tensor]
    rules: list[Rule]
    weights: list[float]
    fixed: list[Tensor] | None = None
    running: dict[str, RunningDeviation] = field(default_factory=dict)
    num_generations: int = 4
    aggregate: Any = "sum"
    is_training: bool = True
    is_left_out: Tensor | None = None
    is_replaced: Tensor | None = None
    fill: Any = "group"

    def settle(self) -> Settled:
        raw = torch.stack(self.raw, dim=1)
        nothing = torch.full((raw.shape[0], len(self.rules)), NAN, dtype=raw.dtype)
        components = [replace(rule, weight=weight) for rule, weight in zip(self.rules, self.weights, strict=False)]
        policy = Exclude() if self.is_left_out is not None else EosPenalty(mode="replace")
        is_cut = self.is_left_out if self.is_left_out is not None else self.is_replaced
        settled, self.running = settle(
            raw,
            nothing if self.fixed is None else torch.stack(self.fixed, dim=1),
            torch.tensor(self.weights, dtype=raw.dtype),
            SettleRules(components, self.aggregate, self.num_generations, policy, self.fill),
            self.running,
            endings=None if is_cut is None else Endings(is_cut, torch.zeros(len(raw)), None),
            environments=[f"env{index}" for index in range(raw.shape[1] - len(components))],
            is_training=self.is_training,
        )
        return settled


def one(*raw: float, fixed: Tensor | None = None, weight: float = 1.0, **rules: Any) -> Settled:
    return Case([column(*raw)], [Rule("one", **rules)], [weight], None if fixed is None else [fixed]).settle()
