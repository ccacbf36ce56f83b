"""Advantages that a function of the user's makes (algorithms/user_function.py)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from rlhf_cli.algorithms.base import Algorithm, Round, RoundAdvantages, shares
from rlhf_cli.algorithms.user_function import AdvantageFunction, Answer, ScoredRound
from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.stack.reward_matrix import Settled


@dataclass(frozen=True)
class OwnAdvantages(Algorithm):
    """The function's advantages replace TRL's. A round teaches nothing if all of them are 0.

    `why_no_tokens` says why the loss takes one advantage per row; None if it also takes one per token.
    """

    fill = "zero"
    is_dead_by_totals = False
    is_scaled_by_round = True  # what the function reads is unknown
    function: AdvantageFunction
    why_no_tokens: str | None = None

    def of_round(self, scored: Round) -> RoundAdvantages:
        """Return the function's advantages, and the shares if it gives parts."""
        answer = self.answer(scored.settled, scored.lengths, scored.num_generations, scored.step)
        advantages = torch.from_numpy(answer.advantages)
        used = advantages[scored.own].to(scored.is_completion.device, torch.float32)
        if answer.is_by_token:
            longer = scored.is_completion.shape[1] - used.shape[1]
            used = torch.nn.functional.pad(used, (0, longer)) * scored.is_completion
            trained = torch.nn.functional.pad(scored.is_trained, (0, -longer))
            advantages = advantages * scored.gather(trained.contiguous()).cpu()
        if not answer.parts:
            return RoundAdvantages(None if answer.gave_parts else {}, used, answer.by_row.tolist())
        parts = torch.stack([torch.from_numpy(part) for part in answer.parts.values()])
        return RoundAdvantages(shares(list(answer.parts), parts, advantages), used, answer.by_row.tolist())

    def answer(self, settled: Settled, lengths: Tensor, num_generations: int, step: int) -> Answer:
        """Return the advantages of a settled round. Raise RewardError or RewardFailed if the function fails."""
        counted = ~settled.totals.isnan()
        scores = settled.unfilled.double().T.numpy()
        scored = ScoredRound(
            totals=settled.row_totals.double().numpy(),
            rewards=dict(zip(settled.names, scores, strict=True)),
            weights=dict(zip(settled.names, settled.weights.tolist(), strict=True)),
            groups=numpy.arange(len(counted)) // num_generations,
            counted=counted.numpy(),
            lengths=lengths.numpy(),
            step=step,
        )
        answer = self.function(scored)
        if answer.is_by_token and self.why_no_tokens is not None:
            what = f"{self.function.fn} gives every token an advantage, and {self.why_no_tokens}"
            got, expected = f"shape {answer.advantages.shape}", f"({len(counted)},)"
            raise RewardError(what, where="advantages.fn", got=got, expected=expected)
        return answer
