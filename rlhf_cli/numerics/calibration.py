"""Measure calibration of scores and agreement of rankings.

A pair's difference is d = r(chosen) - r(rejected). By Bradley and Terry (1952, Biometrika 39:324) the model considers
the chosen one better with probability sigmoid(d). The label, not the model, decides which one was chosen. The model's
own verdict is the higher score with confidence sigmoid(|d|) in [1/2, 1], and the verdict is right if d > 0.

tau-b (Kendall 1945) is the number of pairs that both rankings order alike minus those that they order oppositely,
divided by the geometric mean of the numbers of pairs that each of them orders at all:
    tau_b = sum_{i<j} sign(x_i - x_j) sign(y_i - y_j) / sqrt(#{x_i != x_j} #{y_i != y_j})

Shapes: N rows, those of a group consecutive. NaN = the row is not ranked.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Bins:
    """Per bin, all (B,): edges, number of pairs, mean confidence (NaN for none), right verdicts (a tie is a half)."""

    low: Tensor
    high: Tensor
    count: Tensor
    confidence: Tensor
    right: Tensor

    @property
    def accuracy(self) -> Tensor:
        """Return the (B,) shares of right verdicts, NaN for an empty bin."""
        return self.right / self.count


def bradley_terry(difference: Tensor) -> Tensor:
    """Return the model's (N,) probabilities that the chosen one is better."""
    return torch.sigmoid(difference.double())


def verdicts(difference: Tensor) -> Tensor:
    """Return (N,): 1 if the model agrees with the label, 0 if not, 1/2 for a tie (a random verdict)."""
    return (torch.sign(difference.double()) + 1) / 2


def reliability(difference: Tensor, num_bins: int = 10) -> Bins:
    """Sort pairs by confidence into `num_bins` equal bins over [1/2, 1]. A bin has its lower edge, the last both."""
    confidence = torch.sigmoid(difference.double().abs())
    edges = torch.linspace(0.5, 1.0, num_bins + 1, dtype=torch.float64)
    index = torch.bucketize(confidence, edges[1:-1].contiguous(), right=True)
    count = torch.bincount(index, minlength=num_bins).double()
    summed = torch.bincount(index, weights=confidence, minlength=num_bins)
    right = torch.bincount(index, weights=verdicts(difference), minlength=num_bins)
    return Bins(edges[:-1], edges[1:], count, summed / count, right)


def expected_calibration_error(bins: Bins) -> float:
    """Return the expected calibration error, sum_b n_b / N |accuracy_b - confidence_b| (Guo, arXiv 1706.04599)."""
    gaps = (bins.accuracy - bins.confidence).abs().nan_to_num(0.0)
    return float((bins.count / bins.count.sum() * gaps).sum())


def brier(difference: Tensor) -> float:
    """Return the mean of (1 - p)² (Brier 1950): 0 is perfect, 1/4 is guessing."""
    return float(((1 - bradley_terry(difference)) ** 2).mean())


def log_loss(difference: Tensor) -> float:
    """Return the mean of -log p, the training loss of a reward model: log 2 = 0.693 is guessing."""
    return float(torch.nn.functional.softplus(-difference.double()).mean())


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
    """Return (groups,) bool, True = no best answer by `first` is one by `second`; ties share, no values: False."""
    grouped = [values.view(-1, num_generations) for values in (first, second)]
    best = [rows == rows.nan_to_num(-torch.inf).amax(dim=1, keepdim=True) for rows in grouped]  # NaN equals nothing
    return best[0].any(dim=1) & best[1].any(dim=1) & ~(best[0] & best[1]).any(dim=1)
