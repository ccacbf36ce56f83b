"""End a run whose rewards give no signal for several rounds, or whose policy has NaN probabilities."""

from __future__ import annotations

from typing import Any

import torch

from rlhf_cli.errors import GuardStopped
from rlhf_cli.rewards.stack.dead_signal import DeadRound, component_statistics, explain_dead_rounds, is_dead
from rlhf_cli.trainers.stacked_rewards import WithRewardStack

_NO_PROBABILITIES = ("probability tensor contains", "device-side assert triggered")
"""torch's messages on a CPU and on a GPU when it samples a token from NaN probabilities."""


class WatchedRounds(WithRewardStack):
    """For a trainer with a reward stack: count rounds without a signal.

    `additions.rewards.no_signal` is the number of consecutive rounds that ends the run.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        self._dead: list[DeadRound] = []
        super().__init__(*args, **named)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Return TRL's rollout with our advantages. Raise GuardStopped after too many rounds without a signal."""
        output = super()._generate_and_score_completions(inputs)
        rewards = self.additions.rewards
        if self.model.training and rewards is not None and rewards.no_signal is not None:
            self._watch(output["advantages"], rewards.no_signal)
        return output

    def _watch(self, advantages: torch.Tensor, limit: int) -> None:
        if not self._teaches_nothing(advantages):
            self._dead.clear()
            return
        settled = self._settled
        left_out = self.truncation.leaves_out(self._endings)
        counts = [(row[0], row[2]) for row in self._counts.values.tolist()]  # rows no gate closed, rows that failed
        self._dead.append(
            DeadRound(
                step=self.state.global_step + 1,
                components=component_statistics(settled, self.reward_stack.components, counts, self._group_size),
                left_out=0.0 if left_out is None else left_out.float().mean().item(),
            )
        )
        if len(self._dead) < limit:
            return
        cause, lines = explain_dead_rounds(self._dead)
        raise GuardStopped(
            f"no signal in {limit} rounds in a row: {cause}",
            where=f"steps {self._dead[0].step} to {self._dead[-1].step}, every advantage of which was 0",
            got="\n".join(lines),
            expected="totals that differ between completions of one prompt: without, nothing is learned",
            hint="rlhf score +exp=..., or guards.no_signal=off",
        )

    def _teaches_nothing(self, advantages: torch.Tensor) -> bool:
        """Return whether every advantage of all ranks is 0, up to rounding of equal totals."""
        outcomes = self.reward_stack.outcomes.values()
        is_by_token = self.is_dense and any(row is not None for outcome in outcomes for row in outcome.tokens)
        largest = advantages.detach().abs().max().item() if advantages.numel() else 0.0
        own = torch.tensor([[largest, float(is_by_token)]], device=self.accelerator.device)
        largest, by_token = self.accelerator.gather(own).max(dim=0).values.tolist()
        if largest == 0.0:
            return True
        # A row's total does not determine token rewards, and a critic's errors always give advantages.
        return not by_token and is_dead(self._compared_totals(), self._group_size)

    @property
    def _group_size(self) -> int:
        """Return how many rows are compared: those of a prompt, or with a critic those of the round."""
        return self._settled.raw.shape[0] if self.additions.ppo is not None else self._num_generations

    def _generate_single_turn(self, *args: Any, **named: Any) -> Any:
        """Generate as in TRL. Raise GuardStopped if the policy's probabilities are NaN."""
        try:
            return super()._generate_single_turn(*args, **named)
        except RuntimeError as error:
            if not any(text in str(error) for text in _NO_PROBABILITIES):
                raise
            details = ["the policy's probabilities of the next token are NaN: its weights have left all bounds"]
            self.stop(["the policy's answer"], details, cause=error, alone=True)
