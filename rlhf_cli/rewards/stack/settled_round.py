"""Settle one round of rollouts, and give RLOO scores whose own leave-one-out is right.

The derivation is in numerics/group_advantages.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_cli.numerics.group_advantages import scores_to_leave_out
from rlhf_cli.numerics.reward_columns import Fill, RunningDeviation
from rlhf_cli.rewards.stack.aggregating import Aggregate
from rlhf_cli.rewards.stack.component import Component
from rlhf_cli.rewards.stack.reward_matrix import Settled, settle
from rlhf_cli.rewards.stack.truncation import COMPONENT, Endings, TruncationPolicy, with_truncation


def settle_round(
    raw: Tensor,
    fixed: Tensor,
    weights: Tensor,
    components: Sequence[Component],
    running: dict[str, RunningDeviation],
    *,
    names: Sequence[str],
    aggregate: Aggregate,
    num_generations: int,
    is_training: bool,
    truncation: TruncationPolicy,
    endings: Endings,
    fill: Fill,
) -> tuple[Settled, dict[str, RunningDeviation]]:
    """Return the settled round, with the truncation component if there is one, and the updated running deviations.

    Arguments and shapes are those of `settle`; `endings` tells how each of the N rows ended.
    """
    settled, after = settle(
        raw,
        fixed,
        weights,
        components,
        running,
        names=names,
        aggregate=aggregate,
        num_generations=num_generations,
        is_training=is_training,
        is_left_out=truncation.leaves_out(endings),
        is_replaced=truncation.replaced(endings),
        fill=fill,
    )
    return (with_truncation(settled, truncation, endings) if truncation.changes_total else settled), after


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
    is_missing = rewards.isnan()
    has_gaps = bool((is_missing.any(dim=1) & ~is_missing.all(dim=1)).any())
    if callable(aggregate) or num_generations < 2 or not has_gaps:
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
    is_excluded = settled.unfilled.isnan()
    if COMPONENT not in settled.names:
        return settled.for_trl.masked_fill(is_excluded, torch.nan)
    added = settled.names.index(COMPONENT)
    is_excluded[:, added] = False
    rewards = settled.for_trl.masked_fill(is_excluded, torch.nan)
    if settled.is_replaced is not None:
        replaced_rows = settled.is_replaced & ~settled.is_unscorable
        rewards[replaced_rows] = 0.0
        rewards[replaced_rows, added] = settled.totals[replaced_rows]
    return rewards
