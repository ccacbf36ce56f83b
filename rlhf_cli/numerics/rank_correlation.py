"""Compare two orders of the same answers, group by group: Kendall's tau-b, and which answers are the best.

tau-b (Kendall 1945) is the number of pairs that both orders rank alike minus those that they rank the other way round,
divided by the geometric mean of the pairs that each of them ranks at all:

    tau_b = sum_{i<j} sign(x_i - x_j) sign(y_i - y_j) / sqrt(#{x_i != x_j} #{y_i != y_j})

Shapes: N rows, those of a group consecutive. NaN = the row has no place in the order.
"""

from __future__ import annotations

import torch
from torch import Tensor


def kendall_tau_b(first: Tensor, second: Tensor, num_generations: int) -> Tensor:
    """Return (groups,) tau-b of (N,) values; NaN for a group in which one of the two ranks nothing."""
    signs = []
    is_seen = ~(first.isnan() | second.isnan()).view(-1, num_generations)
    is_pair = is_seen.unsqueeze(1) & is_seen.unsqueeze(2)
    for values in (first, second):
        grouped = values.view(-1, num_generations)
        difference = torch.sign(grouped.unsqueeze(2) - grouped.unsqueeze(1)).double()
        signs.append(torch.where(is_pair, difference, 0.0))
    one, other = signs
    ranked = (one**2).sum(dim=(1, 2)) * (other**2).sum(dim=(1, 2))
    return (one * other).sum(dim=(1, 2)) / ranked.sqrt()  # 0 / 0 is NaN


def best_changes(first: Tensor, second: Tensor, num_generations: int) -> Tensor:
    """Return (groups,) bool: none of the answers that are the best by `first` is among the best by `second`.

    Answers may share the first place. A group in which either has no values does not change.
    """
    best = [_is_best(values.view(-1, num_generations)) for values in (first, second)]
    return best[0].any(dim=1) & best[1].any(dim=1) & ~(best[0] & best[1]).any(dim=1)


def _is_best(grouped: Tensor) -> Tensor:
    highest = grouped.nan_to_num(-torch.inf).amax(dim=1, keepdim=True)
    return (grouped == highest) & ~grouped.isnan()
