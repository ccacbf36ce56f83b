"""Turn raw scores into what enters the total, and penalise overlong completions.

Shapes: N rows of all ranks, the rows of a group consecutive; K components. NaN means "does not apply".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

_LEAST_DEVIATION = 1e-6
"""A column with a smaller deviation is constant: dividing would only amplify rounding errors, so it is not divided."""


Normalize = Literal["none", "batch", "group", "running"]
Fill = Literal["group", "zero"]


@dataclass(frozen=True)
class RunningDeviation:
    """The running standard deviation of all scores so far, by Welford's method.

    Whole batches are added as in Chan et al. 1979. It is unbiased (n - 1), like the batch's and the group's.
    """

    count: float = 0.0
    mean: float = 0.0
    sum_of_squares: float = 0.0

    def updated(self, values: Tensor) -> RunningDeviation:
        """Return the state after adding the non-NaN entries of `values` (any shape)."""
        seen = values[~values.isnan()].double()
        if seen.numel() == 0:
            return self
        count, mean = float(seen.numel()), float(seen.mean())
        delta, total = mean - self.mean, self.count + count
        squares = float(((seen - mean) ** 2).sum()) + delta**2 * self.count * count / total
        return RunningDeviation(total, self.mean + delta * count / total, self.sum_of_squares + squares)

    @property
    def deviation(self) -> float:
        """Return the unbiased deviation, 0 for fewer than two scores."""
        return float((self.sum_of_squares / (self.count - 1)) ** 0.5) if self.count > 1 else 0.0

    @property
    def divisor(self) -> float:
        """Return the divisor of scores: the deviation, or 1 if the scores are constant."""
        return self.deviation if self.deviation > _LEAST_DEVIATION else 1.0


def clipped(raw: Tensor, offset: float, clip: tuple[float, float] | None) -> Tensor:
    """Return `raw - offset`, clipped to `clip`; NaN stays NaN."""
    values = raw - offset
    return values if clip is None else values.clamp(*clip)


def divisors(values: Tensor, normalize: Normalize, num_generations: int, running: RunningDeviation) -> Tensor:
    """Return the (N,) divisors of scores: the deviation of the batch, of the group, or of all scores so far.

    Normalising divides and never centres: a score of 0 still means "worth 0", so a row that a gate sets to 0 does not
    beat a poor one. A constant column is divided by 1. `running` is the state including this batch.
    """
    if normalize == "none":
        return torch.ones_like(values)
    if normalize == "running":
        deviation = torch.full_like(values, running.deviation)
    elif normalize == "batch":
        deviation = _deviation(values.unsqueeze(0)).squeeze(0).expand_as(values)
    else:
        deviation = _deviation(values.view(-1, num_generations)).flatten().repeat_interleave(num_generations)
    return torch.where(deviation > _LEAST_DEVIATION, deviation, torch.ones_like(deviation))


def filled(effective: Tensor, num_generations: int, fill: Fill = "group") -> Tensor:
    """Return (N, K) with every excluded entry set to a number that neither helps nor hurts its row.

    `zero`: it adds 0 to the total; for a trainer without groups, and for RLOO, whose baseline excludes it
    (leave_one_out.py). `group`: its component's mean over the group's rows where it applies. That equals the group's
    mean, so its part of an advantage is exactly 0 under GRPO, whose baseline is that mean. A row in which no component
    applies stays NaN: TRL gives it no advantage and counts it in no mean. A component that applies to no row of a group
    is 0 in it.
    """
    if not effective.isnan().any():
        return effective
    num_components = effective.shape[1]
    grouped = effective.view(-1, num_generations, num_components)
    mean = grouped.nanmean(dim=1, keepdim=True).nan_to_num(0.0).expand_as(grouped).reshape(-1, num_components)
    applies_somewhere = ~effective.isnan().all(dim=1, keepdim=True)
    if fill == "zero":
        return torch.where(effective.isnan() & applies_somewhere, torch.zeros_like(effective), effective)
    return torch.where(effective.isnan() & applies_somewhere, mean, effective)


def normalized_in_group(effective: Tensor, num_generations: int, eps: float = 1e-4) -> Tensor:
    """Return (N, K), each component z-scored within its group, as GDPO does before it sums (arXiv 2601.05242)."""
    grouped = effective.view(-1, num_generations, effective.shape[1])
    mean = grouped.nanmean(dim=1, keepdim=True)
    deviation = _deviation(grouped.transpose(1, 2)).transpose(1, 2)
    return ((grouped - mean) / (deviation + eps)).reshape_as(effective)


def _deviation(values: Tensor) -> Tensor:
    """Return the unbiased deviation over the last dimension (kept), ignoring NaN; 0 for fewer than two values.

    In float64: the float32 mean of a constant 1000.1 is off by more than `_LEAST_DEVIATION`.
    """
    exact = values.double()
    count = (~exact.isnan()).sum(dim=-1, keepdim=True)
    squares = ((exact - exact.nanmean(dim=-1, keepdim=True)) ** 2).nansum(dim=-1, keepdim=True)
    return (squares / (count - 1).clamp(min=1)).sqrt().to(values)


def soft_overlong(lengths: Tensor, max_completion_length: int, cache_tokens: int) -> Tensor:
    """Return DAPO's soft overlong punishment (arXiv 2503.14476, eq. 13).

        0                                where length <= max - cache
        ((max - cache) - length) / cache where max - cache < length <= max
        -1                               where max < length

    Args:
        lengths: (N,), tokens of each completion.
        max_completion_length: the length at which a completion is truncated.
        cache_tokens: in 1 .. max_completion_length, the last tokens before it, over which the punishment grows.

    Returns:
        (N,) float in [-1, 0].
    """
    if not 1 <= cache_tokens <= max_completion_length:
        raise ValueError(f"cache_tokens is {cache_tokens}, not in 1 .. {max_completion_length} (the maximal length)")
    return ((max_completion_length - cache_tokens - lengths) / cache_tokens).clamp(-1.0, 0.0)
