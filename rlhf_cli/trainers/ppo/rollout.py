"""Turn rewards, values and the KL penalty of a rollout into advantages and returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from torch import Tensor

from rlhf_cli.numerics.gae import explained_variance, gae, whiten
from rlhf_cli.numerics.group_advantages import token_shares
from rlhf_cli.numerics.ppo_losses import adapted_coef, k1, k3
from rlhf_cli.tables.trl_values import MAX_RELATIVE_KL_ERROR

if TYPE_CHECKING:
    from rlhf_cli.trainers.trl_protocol import TrlBatch


@dataclass(frozen=True)
class KlPenalty:
    """A KL(policy || reference) penalty: k1 subtracted from every token's reward, or k3 in TRL's loss.

    Never both, which would count it twice. With `target` (nats per completion) and `horizon` (completions), the
    coefficient adapts to the measured divergence; otherwise it is constant.
    """

    where: str = "reward"
    coef: float = 0.05
    target: float | None = None
    horizon: int | None = None

    @property
    def is_used(self) -> bool:
        """Return whether a reference model is needed."""
        return self.where != "none"

    @property
    def coef_in_reward(self) -> float:
        """Return the coefficient in the tokens' rewards, 0 if the penalty is in the loss."""
        return self.coef if self.where == "reward" else 0.0

    def updated(self, kl: float, num_rows: int) -> KlPenalty:
        """Return the penalty after `num_rows` completions with a mean divergence of `kl` nats; NaN: no row counted."""
        if self.target is None or self.horizon is None or math.isnan(kl):
            return self
        error = MAX_RELATIVE_KL_ERROR
        coef = adapted_coef(self.coef, kl, num_rows, target=self.target, horizon=self.horizon, max_error=error)
        return replace(self, coef=coef)


SumOverRanks = Callable[[Tensor], Tensor]


def shuffled_prompts(rows: TrlBatch, *, first: int, num_generations: int) -> TrlBatch:
    """Return a rank's rows of a round with the prompts in random order, and a prompt's answers one after another.

    `first` is the number of rows on the ranks before: the answers of a prompt may begin there. Takes the place of TRL's
    `shuffle_sequence_dict`, which moves every row by itself.
    """
    num_rows = len(next(values for values in rows.values() if values is not None))
    prompts = torch.arange(first, first + num_rows) // num_generations
    prompts -= first // num_generations
    order = torch.randperm(int(prompts.max()) + 1)[prompts].argsort(stable=True)

    def in_order(values: Any) -> Any:
        if isinstance(values, Tensor):
            return values[order.to(values.device)] if values.ndim else values
        return values if values is None else [values[row] for row in order.tolist()]

    return {name: in_order(values) for name, values in rows.items()}


@dataclass(frozen=True)
class PpoSettings:
    """PPO's own settings; all others are fields of TRL's GRPOConfig.

    `keeps_prompts`: all answers of a prompt go into the same minibatch, as far as its size allows.
    """

    gamma: float = 1.0
    gae_lambda: float = 0.95
    whiten_advantages: bool = True
    keeps_prompts: bool = True


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
    the round taught nothing but rounding, so `used` is 0.
    """

    raw: Tensor
    used: Tensor
    returns: Tensor
    kl_reward: Tensor
    is_rounding: bool = False


def without_last(scores: Tensor, lengths: Tensor, is_given_way: Tensor) -> Tensor:
    """Return (K, B, C) scores with 0 on the last token of the rows whose score the critic's value replaces.

    lengths: (B,) tokens of a completion. is_given_way: (B,) bool.
    """
    is_last = torch.arange(scores.shape[2], device=scores.device) == (lengths - 1).unsqueeze(1)
    return scores.masked_fill(is_last & is_given_way.unsqueeze(1), 0.0)


def advantages_of(rollout: Rollout, settings: PpoSettings, kl: KlPenalty, sum_over_ranks: SumOverRanks) -> Advantages:
    """Estimate advantages (GAE) of score and KL penalty, whitened over all ranks if configured."""
    divergence = rollout.kl_tokens(k1)
    kl_reward = torch.zeros_like(rollout.values)
    if divergence is not None:
        kl_reward = -kl.coef_in_reward * divergence
    scores = rollout.scores.sum(dim=0)
    raw, returns = _gae(rollout, settings, scores + kl_reward, rollout.values, rollout.last_values)
    used = whiten(raw, rollout.is_action, sum_over_ranks)[0] if settings.whiten_advantages else raw
    alone, _ = _gae(rollout, settings, scores, rollout.values, rollout.last_values)
    same, none = _is_rounding(rollout, alone, divergence, settings, sum_over_ranks)
    if none:
        raw, returns = torch.zeros_like(raw), rollout.values
    return Advantages(raw, torch.zeros_like(used) if same else used, returns, kl_reward, is_rounding=same)


_LOGP_ROUNDING = 1e-4
"""In nats a token: two float32 passes of one model differ by less, 9e-6 on average with 135 million parameters."""
_ROUNDING = 1e-5
"""Share of the largest score or value: what float32 leaves of a difference of equal ones, added up over a row."""


def _is_rounding(
    rollout: Rollout, advantages: Tensor, divergence: Tensor | None, settings: PpoSettings, sum_over_ranks: SumOverRanks
) -> tuple[bool, bool]:
    """Return whether (B, C) advantages without a KL penalty are all equal, and all 0, but for rounding, on all ranks.

    Equal ones count only if they are whitened: whitening, and Adam after it, would make a whole step of the rounding.
    Neither holds if the policy has left its reference, given by its `divergence` (B, C).
    """
    _, mean, _ = whiten(advantages, rollout.is_action, sum_over_ranks)
    sizes = [one.abs().max() for one in (rollout.scores.sum(dim=0), rollout.values, rollout.last_values) if one.numel()]
    limit = _ROUNDING * torch.stack(sizes).max() if sizes else 0.0
    centre = mean if settings.whiten_advantages else 0.0
    far = divergence if divergence is not None else torch.zeros_like(advantages)
    # NaN is below nothing, so a round with one is left to the guard.
    below = [far.abs() <= _LOGP_ROUNDING, (advantages - centre).abs() <= limit, advantages.abs() <= limit]
    counts = sum_over_ranks(torch.stack([(~one & rollout.is_action).sum().double() for one in below]))
    num_far, num_apart, num_above = counts.tolist()
    return not (num_far or num_apart), not (num_far or num_above)


def _gae(
    rollout: Rollout, settings: PpoSettings, rewards: Tensor, values: Tensor, last_values: Tensor
) -> tuple[Tensor, Tensor]:
    copies = len(rewards) // len(rollout.values)
    return gae(
        rewards,
        values,
        rollout.is_action.repeat(copies, 1),
        last_values=last_values,
        is_truncated=rollout.is_bootstrapped.repeat(copies),
        gamma=settings.gamma,
        lam=settings.gae_lambda,
    )


def rollout_shares(
    rollout: Rollout, advantages: Advantages, settings: PpoSettings, names: Sequence[str], sum_over_ranks: SumOverRanks
) -> dict[str, float]:
    """Return `rewards/NAME/advantage_share` for every component, for `kl` and for `value` (the critic's part).

    GAE is linear in rewards and values, so an advantage is the sum of the advantages of its parts. Return an empty dict
    if it is not.
    """
    parts = torch.cat(
        [rollout.scores, advantages.kl_reward.unsqueeze(0), torch.zeros_like(rollout.values).unsqueeze(0)]
    )
    is_critic = torch.arange(len(parts), device=parts.device) == len(parts) - 1
    values = rollout.values.where(rollout.is_action, 0.0) * is_critic.view(-1, 1, 1)
    last_values = rollout.last_values * is_critic.view(-1, 1)
    alone, _ = _gae(rollout, settings, parts.flatten(0, 1), values.flatten(0, 1), last_values.flatten())
    alone = alone.view_as(parts)
    # float32 rounds at every token of the recursion.
    limit = 1e-6 * alone.shape[2] * alone.abs().sum(dim=0)
    is_other = (alone.sum(dim=0) - advantages.raw).abs() > limit
    if sum_over_ranks(is_other.sum().double().unsqueeze(0)).item():
        return {}
    shares = token_shares(alone, advantages.used, sum_over_ranks)
    named = zip([*names, "kl", "value"], shares or [], strict=shares is not None)
    return {
        f"rewards/{name}/advantage_share": share for name, share in named if name != "kl" or advantages.kl_reward.any()
    }


def rollout_metrics(
    rollout: Rollout, advantages: Advantages, settings: PpoSettings, kl: KlPenalty, accelerator: Accelerator
) -> dict[str, float]:
    """Return the rollout's metrics over the actions of all ranks. docs/reference/metrics.md explains every name."""

    def sum_over_ranks(sums: Tensor) -> Tensor:
        summed: Tensor = accelerator.reduce(sums, reduction="sum")
        return summed

    mask = rollout.is_action
    _, return_mean, return_std = whiten(advantages.returns, mask, sum_over_ranks)
    _, value_mean, _ = whiten(rollout.values, mask, sum_over_ranks)
    _, advantage_mean, advantage_std = whiten(advantages.raw, mask, sum_over_ranks)
    means = {
        "ppo/returns_mean": return_mean,
        "ppo/returns_std": return_std,
        "ppo/values_mean": value_mean,
        "ppo/advantages_mean": advantage_mean,
        "ppo/advantages_std": advantage_std,
        "ppo/explained_variance": explained_variance(rollout.values, advantages.returns, mask, sum_over_ranks),
    }
    values = torch.stack([mean.double() for mean in means.values()]).tolist()
    metrics: dict[str, float] = dict(zip(means, values, strict=True))
    rows = mask.any(dim=1)
    added = (settings.gamma * rollout.last_values)[rollout.is_bootstrapped & rows].double()
    divergence, low_variance = rollout.kl_tokens(k1), rollout.kl_tokens(k3)
    zero = torch.zeros((), dtype=torch.float64, device=mask.device)
    sums = [
        mask.sum().double(),
        rows.sum().double(),
        added.sum(),
        zero + added.numel(),
        advantages.kl_reward.double().sum(),
        rollout.scores.double().sum(),
    ]
    sums += [zero if tokens is None else tokens.double().sum() for tokens in (divergence, low_variance)]
    num_tokens, num_rows, bootstrap, num_bootstrapped, kl_reward, score, k1_sum, k3_sum = sum_over_ranks(
        torch.stack(sums)
    ).tolist()
    metrics["rewards/truncation/bootstrap_value"] = _ratio(bootstrap, num_bootstrapped)
    if kl.is_used:
        metrics["kl/k1_policy_ref"] = _ratio(k1_sum, num_tokens)
        metrics["kl/k3_policy_ref"] = _ratio(k3_sum, num_tokens)
        metrics["kl/k1_policy_ref_per_row"] = _ratio(k1_sum, num_rows)
        metrics["kl/coef"] = kl.coef
    if kl.where == "reward":
        metrics["rewards/kl/weighted_mean"] = _ratio(kl_reward, num_rows)
        metrics["ppo/rlhf_reward"] = _ratio(score + kl_reward, num_rows)
    return metrics


def _ratio(total: float, count: float) -> float:
    return total / count if count else torch.nan
