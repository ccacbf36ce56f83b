"""Compute scores from which RLOO's leave-one-out gives correct advantages if rewards do not apply to all rows.

The derivation is in numerics/leave_one_out.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_cli.numerics.leave_one_out import scores_to_leave_out
from rlhf_cli.stack.aggregating import Aggregate
from rlhf_cli.stack.settling import Settled
from rlhf_cli.stack.truncation import COMPONENT


@dataclass(frozen=True)
class LeaveOutScores:
    """The input of RLOO's sum, clip and leave-one-out. `for_trl` is (N, K), `weights` (K,).

    `scores` (N, K) replace the settled rewards; None without excluded entries. `is_clipped`: the totals are clipped
    already, and must not be clipped again.
    """

    for_trl: Tensor
    weights: Tensor
    scores: Tensor | None = None
    is_clipped: bool = False


def leave_out_scores(
    settled: Settled, aggregate: Aggregate, num_generations: int, clip_range: tuple[float, float] | None
) -> LeaveOutScores:
    """Return RLOO's input for a settled round: the rewards if each applies to every row, else corrected scores.

    If corrected scores are used, totals are clipped here.
    """
    rewards, weights = _where_they_apply(settled), settled.trl_weights
    if callable(aggregate) or num_generations < 2 or not _has_gaps(rewards):
        return LeaveOutScores(settled.for_trl, weights)
    scores = scores_to_leave_out(rewards, num_generations)
    if clip_range is None:
        return LeaveOutScores(scores, weights, scores)
    # The amount that clipping removes from a row's total is a component of its own, which applies to every row.
    totals = (rewards * weights).nansum(dim=1)
    taken = totals.clamp(*clip_range) - totals
    clipped = torch.zeros_like(rewards)
    clipped[:, 0] = (scores * weights).sum(dim=1) + taken
    first = torch.zeros_like(weights)
    first[0] = 1.0
    return LeaveOutScores(clipped.masked_fill(settled.is_unscorable.unsqueeze(1), torch.nan), first, scores, True)


def _where_they_apply(settled: Settled) -> Tensor:
    """Return (N, K) settled rewards, NaN if one does not apply; the truncation component always applies.

    If it replaces a row's rewards, that row gets 0 for each of them, so that other rows are not compared with its loss.
    """
    if COMPONENT not in settled.names:
        return settled.for_trl.masked_fill(settled.unfilled.isnan(), torch.nan)
    added = settled.names.index(COMPONENT)
    is_excluded = settled.unfilled.isnan()
    is_excluded[:, added] = False
    rewards = settled.for_trl.masked_fill(is_excluded, torch.nan)
    if settled.is_replaced is not None:
        gives_way = settled.is_replaced & ~settled.is_unscorable
        rewards[gives_way] = 0.0
        rewards[gives_way, added] = settled.totals[gives_way]
    return rewards


def _has_gaps(rewards: Tensor) -> bool:
    """Return whether some row has both a component that applies and one that does not."""
    is_missing = rewards.isnan()
    return bool((is_missing.any(dim=1) & ~is_missing.all(dim=1)).any())
