"""Find truncated rows, log what the truncation policy changed, and leave excluded rewards out of RLOO's baselines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from rlhf_cli.rewards.stack.reward_matrix import Settled
from rlhf_cli.truncation import COMPONENT, Endings

FLAG = "is_truncated"
"""Dataset column, rollout field or environment attribute: a row was truncated elsewhere, or the name of its ending."""


def find_truncated(
    completion_ids: Sequence[Sequence[int]],
    ending_ids: Collection[int],
    max_completion_length: int | None,
    has_stopped: Callable[[Sequence[int]], bool] = lambda ids: False,
) -> list[bool]:
    """Return one bool per row: it reached the limit without an ending token.

    `ending_ids` are all end-of-sequence ids that the model declares. `has_stopped` says whether a row ends at a stop
    string, also at the limit. A row that stopped before the limit otherwise (an environment that ended the episode) is
    terminated. Without a limit, only a row with such an id or a stop string is.
    """
    return [
        len(ids) >= (max_completion_length or 0) and (not ids or ids[-1] not in ending_ids) and not has_stopped(ids)
        for ids in completion_ids
    ]


def column(completions: Sequence[object], **_: object) -> list[float]:
    """Represent the truncation component among TRL's reward functions; its values are settled later."""
    return [0.0] * len(completions)


column.__name__ = COMPONENT


def truncation_metrics(settled: Settled, endings: Endings) -> dict[str, float]:
    """Return the truncated fraction, and the mean score of these rows before and after the policy.

    The scores are NaN if no truncated row has one.
    """
    cut = endings.is_truncated
    after = settled.row_totals
    added = settled.raw[:, settled.names.index(COMPONENT)] if COMPONENT in settled.names else torch.zeros_like(after)
    return {
        "rewards/truncation/fraction": cut.float().mean().item(),
        "rewards/truncation/score_before": (after[cut] - added[cut]).nanmean().item(),
        "rewards/truncation/score_after": after[cut].nanmean().item(),
    }


def where_rewards_apply(settled: Settled) -> Tensor:
    """Return (N, K) settled rewards, NaN if one does not apply; the truncation component always applies.

    If it replaces a row's rewards, that row gets 0 for each of them, so that other rows are not compared with its loss.
    """
    is_excluded = settled.unfilled.isnan() & settled.is_counted
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
