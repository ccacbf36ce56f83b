"""Give RLOO the baseline of each reward over the other rows to which it applies (numerics/leave_one_out.py).

Where nothing is excluded TRL's own arithmetic is right and is left alone. Where something is, TRL is given scores of
which its own leave-one-out makes those advantages, so that the KL in the reward and normalising stay TRL's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlhf_cli.numerics.leave_one_out import scores_to_leave_out
from rlhf_cli.numerics.reward_columns import Fill
from rlhf_cli.stack.truncation import COMPONENT
from rlhf_cli.trainers.stacked_rewards import WithRewardStack
from rlhf_cli.trainers.trl_protocol import TrlBatch


class WithLeaveOneOut(WithRewardStack):
    """Mixed into RLOOTrainer, it leaves a reward that does not apply to a row out of the row's total and baseline."""

    _fill: Fill = "zero"
    _scores: Tensor | None = None
    """(N, K): what TRL is given in the place of the settled rewards, None where nothing is excluded."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._clip_range = self.reward_clip_range

    def _calculate_rewards(
        self,
        inputs: list[dict[str, Any]],
        prompts: list[Any],
        completions: list[Any],
        completion_ids_list: list[list[int]],
    ) -> Tensor:
        """Return what TRL shall weigh and sum, as WithRewardStack; a total is clipped here, where scores are given."""
        summed = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        rewards = self._where_they_apply()
        self._scores = None
        if callable(self.aggregate) or self._num_generations < 2 or not _has_gaps(rewards):
            return summed
        self._scores = scores_to_leave_out(rewards, self._num_generations)
        if self._clip_range is None:
            return self._scores
        # What clipping takes from a row's total is a component of its own, which applies to every row.
        weights = self._settled.trl_weights
        totals = (rewards * weights).nansum(dim=1)
        taken = totals.clamp(*self._clip_range) - totals
        clipped = torch.zeros_like(rewards)
        clipped[:, 0] = (self._scores * weights).sum(dim=1) + taken
        self.reward_weights = torch.zeros_like(weights)
        self.reward_weights[0] = 1.0
        self.reward_clip_range = None  # until TRL has made advantages of them
        return clipped.masked_fill(self._settled.is_unscorable.unsqueeze(1), torch.nan)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        if self._scores is not None:  # TRL logged the mean of what it was given
            totals = self._settled.row_totals
            totals = totals[~totals.isnan()]
            metrics = self._metrics["train" if self.model.training else "eval"]
            metrics["reward"][-1] = totals.mean().item() if totals.numel() else torch.nan
            metrics["reward_std"][-1] = totals.std().item() if totals.numel() > 1 else torch.nan
        return output

    def _set_advantages(self, output: TrlBatch) -> dict[str, float]:
        self.reward_clip_range = self._clip_range
        return super()._set_advantages(output)

    def _summed_by_trl(self) -> Tensor:
        return super()._summed_by_trl() if self._scores is None else self._scores * self._settled.trl_weights

    def _where_they_apply(self) -> Tensor:
        """Return (N, K) settled rewards, NaN where one does not apply; what a truncation policy adds always does.

        Where it takes the place of the rewards a row has 0 of each: no other row is compared with what it lost.
        """
        settled = self._settled
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
    """Return whether a component does not apply to a row to which another one does."""
    is_missing = rewards.isnan()
    return bool((is_missing.any(dim=1) & ~is_missing.all(dim=1)).any())
