"""Compare two rankings of the same answers per group: Kendall's tau-b, and the best answers.

tau-b (Kendall 1945) is the number of pairs that both rankings order alike minus those that they order oppositely,
divided by the geometric mean of the numbers of pairs that each of them orders at all:
    tau_b = sum_{i<j} sign(x_i - x_j) sign(y_i - y_j) / sqrt(#{x_i != x_j} #{y_i != y_j})

Shapes: N rows, those of a group consecutive. NaN = the row is not ranked.
"""

from __future__ import annotations

import torch
from torch import Tensor


def kendall_tau_b(first: Tensor, second: Tensor, num_generations: int) -> Tensor:
    """Return (groups,) tau-b of (N,) values; NaN for a group in which all values of one ranking are tied."""
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
    """Return (groups,) bool, True = the sets of best answers by `first` and by `second` do not overlap.

    Answers may share the first place. A group in which either has no values does not change.
    """
    best = [_is_best(values.view(-1, num_generations)) for values in (first, second)]
    return best[0].any(dim=1) & best[1].any(dim=1) & ~(best[0] & best[1]).any(dim=1)


def _is_best(grouped: Tensor) -> Tensor:
    highest = grouped.nan_to_num(-torch.inf).amax(dim=1, keepdim=True)
    return (grouped == highest) & ~grouped.isnan()
