"""Give RLOO the baseline of each reward over the other rows to which it applies (numerics/leave_one_out.py).

If no entry is excluded, TRL's own arithmetic is correct and unchanged. Otherwise TRL gets scores from which its
leave-one-out computes the correct advantages (stack/leave_out_scores.py), so that TRL still handles the KL in the
reward and the normalisation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlhf_cli.numerics.reward_columns import Fill
from rlhf_cli.rewards.stack.settled_round import leave_out_scores
from rlhf_cli.trainers.stacked_rewards import WithRewardStack
from rlhf_cli.trainers.trl_protocol import TrlBatch


class WithLeaveOneOut(WithRewardStack):
    """For RLOOTrainer: exclude a reward that does not apply to a row from the row's total and baseline."""

    _fill: Fill = "zero"
    _scores: Tensor | None = None
    """(N, K): the scores that TRL gets instead of the settled rewards, None if no entry is excluded."""

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
        """Return the matrix that TRL weighs and sums, as in WithRewardStack; corrected scores have clipped totals."""
        summed = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        given = leave_out_scores(self._settled, self.aggregate, self._num_generations, self._clip_range)
        self._scores = given.scores
        if given.scores is None:
            return summed
        self.reward_weights = given.weights
        if given.is_clipped:
            self.reward_clip_range = None  # until TRL has computed advantages
        return given.for_trl

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        if self._scores is not None:  # TRL logged the mean of the corrected scores
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
