"""PPO: a token against what a critic expects (arXiv 1707.06347), estimated by GAE (arXiv 1506.02438)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_cli.algorithms.base import SAME, Algorithm, shares
from rlhf_cli.numerics.ppo import gae, k1, whiten

SumOverRanks = Callable[[Tensor], Tensor]

_LOGP_ROUNDING = 1e-4
"""In nats a token: two float32 passes of one model differ by less, 9e-6 on average with 135 million parameters."""
_ROUNDING = 1e-5
"""Share of the largest score or value: what float32 leaves of a difference of equal ones, added up over a row."""


@dataclass(frozen=True)
class Rollout:
    """One rank's rows of a round: B rows, C completion tokens, K reward components; 0 where there is no action.

    `is_action` (B, C) bool: the policy chose the token, and its row counts. `scores` (K, B, C): every component's
    weighted reward at its tokens. `values` (B, C): the old critic's value of the state before each token. `last_values`
    (B,): of the state after the last token. `is_bootstrapped` (B,) bool: the return includes the last value. `logps`,
    `ref_logps` (B, C): the tokens' log-probabilities under the policy and the reference; None without a KL penalty.
    """

    is_action: Tensor
    scores: Tensor
    values: Tensor
    last_values: Tensor
    is_bootstrapped: Tensor
    logps: Tensor | None
    ref_logps: Tensor | None

    def kl_tokens(self, estimator: Callable[[Tensor, Tensor], Tensor]) -> Tensor | None:
        """Return (B, C), an estimate of KL(policy || reference) at every action; None without a reference."""
        if self.logps is None or self.ref_logps is None:
            return None
        return estimator(self.logps, self.ref_logps).where(self.is_action, 0.0)


@dataclass(frozen=True)
class Advantages:
    """GAE's results for a rollout, each (B, C). `raw` is before whitening; `used` trains the policy.

    `kl_reward` is the penalty's part in each token's reward; zeros if the penalty is not in the reward. `is_rounding`:
    the round held only rounding errors, so `used` is 0.
    """

    raw: Tensor
    used: Tensor
    returns: Tensor
    kl_reward: Tensor
    is_rounding: bool


def without_last(scores: Tensor, lengths: Tensor, is_replaced: Tensor) -> Tensor:
    """Return (K, B, C) scores, 0 on a row's last token (of (B,) `lengths`) if the critic's value replaces its score."""
    is_last = torch.arange(scores.shape[2], device=scores.device) == (lengths - 1).unsqueeze(1)
    return scores.masked_fill(is_last & is_replaced.unsqueeze(1), 0.0)


@dataclass(frozen=True)
class Ppo(Algorithm):
    """PPO with its own settings; all others are fields of TRL's GRPOConfig.

    A row is compared with its critic's values, so all rows of a round count as one group. `keeps_prompts`: all answers
    of a prompt go into the same minibatch, as far as its size allows.
    """

    fill = "zero"
    compares_groups = False
    why_not_replayed = "PPO's advantages are made of its critic's values, which are not stored"
    gamma: float
    gae_lambda: float
    whiten_advantages: bool
    keeps_prompts: bool

    def advantages(self, rollout: Rollout, kl_coef: float, sum_over_ranks: SumOverRanks) -> Advantages:
        """Estimate advantages (GAE) of score and KL penalty (`kl_coef`, 0 for none), whitened over all ranks if set."""
        divergence = rollout.kl_tokens(k1)
        kl_reward = torch.zeros_like(rollout.values) if divergence is None else -kl_coef * divergence
        scores = rollout.scores.sum(dim=0)
        raw, returns = self._gae(rollout, scores + kl_reward, rollout.values, rollout.last_values)
        used = whiten(raw, rollout.is_action, sum_over_ranks)[0] if self.whiten_advantages else raw
        alone, _ = self._gae(rollout, scores, rollout.values, rollout.last_values)
        are_equal, are_zero = self._are_rounding(rollout, alone, divergence, sum_over_ranks)
        if are_zero:
            raw, returns = torch.zeros_like(raw), rollout.values
        used = torch.zeros_like(used) if are_equal else used
        return Advantages(raw, used, returns, kl_reward, is_rounding=are_equal)

    def parts(self, rollout: Rollout, kl_reward: Tensor) -> Tensor:
        """Return the (K + 2, B, C) parts of the advantages before whitening: of each reward, the KL and the critic.

        GAE is linear in rewards and values, so an advantage is the sum of the advantages of its parts.
        """
        none = torch.zeros_like(rollout.values)
        rewards = torch.cat([rollout.scores, kl_reward.unsqueeze(0), none.unsqueeze(0)])
        is_critic = torch.arange(len(rewards), device=rewards.device) == len(rewards) - 1
        values = rollout.values.where(rollout.is_action, 0.0) * is_critic.view(-1, 1, 1)
        last_values = rollout.last_values * is_critic.view(-1, 1)
        parts, _ = self._gae(rollout, rewards.flatten(0, 1), values.flatten(0, 1), last_values.flatten())
        return parts.view_as(rewards)

    def shares(
        self, rollout: Rollout, advantages: Advantages, names: Sequence[str], sum_over_ranks: SumOverRanks
    ) -> dict[str, float]:
        """Return the share of every reward, of `kl` and of `value` (the critic's part).

        Return an empty dict if the parts do not add up to the advantages.
        """
        parts = self.parts(rollout, advantages.kl_reward)
        # float32 rounds at every token of the recursion.
        limit = SAME * parts.shape[2] * parts.abs().sum(dim=0)
        is_other = (parts.sum(dim=0) - advantages.raw).abs() > limit
        if sum_over_ranks(is_other.sum().double().unsqueeze(0)).item():
            return {}
        found = shares([*names, "kl", "value"], parts, advantages.used, sum_over_ranks, is_whitened=True)
        if not advantages.kl_reward.any():
            found.pop("kl", None)
        return found

    def _gae(self, rollout: Rollout, rewards: Tensor, values: Tensor, last_values: Tensor) -> tuple[Tensor, Tensor]:
        copies = len(rewards) // len(rollout.values)
        return gae(
            rewards,
            values,
            rollout.is_action.repeat(copies, 1),
            last_values=last_values,
            is_truncated=rollout.is_bootstrapped.repeat(copies),
            gamma=self.gamma,
            lam=self.gae_lambda,
        )

    def _are_rounding(
        self, rollout: Rollout, advantages: Tensor, divergence: Tensor | None, sum_over_ranks: SumOverRanks
    ) -> tuple[bool, bool]:
        """Return whether (B, C) advantages without a KL are all equal, and all 0, but for rounding, on all ranks.

        Equal ones count only if they are whitened: whitening, and Adam after it, would make a whole step of the
        rounding. Neither holds if the policy has left its reference, given by its `divergence` (B, C).
        """
        _, mean, _ = whiten(advantages, rollout.is_action, sum_over_ranks)
        held = (rollout.scores.sum(dim=0), rollout.values, rollout.last_values)
        sizes = [values.abs().max() for values in held if values.numel()]
        limit = _ROUNDING * torch.stack(sizes).max() if sizes else 0.0
        centre = mean if self.whiten_advantages else 0.0
        far = divergence if divergence is not None else torch.zeros_like(advantages)
        # NaN is below nothing, so a round with one is left to the guard.
        below = [far.abs() <= _LOGP_ROUNDING, (advantages - centre).abs() <= limit, advantages.abs() <= limit]
        counts = sum_over_ranks(torch.stack([(~is_below & rollout.is_action).sum().double() for is_below in below]))
        num_far, num_apart, num_above = counts.tolist()
        return not (num_far or num_apart), not (num_far or num_above)
