"""Set and adapt the KL penalty, shuffle the rows of a round, and measure a rollout."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from torch import Tensor

from rlhf_cli.algorithms.ppo import Advantages, Ppo, Rollout
from rlhf_cli.numerics.ppo import adapted_coef, explained_variance, k1, k3, whiten
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


def rollout_metrics(
    rollout: Rollout, advantages: Advantages, settings: Ppo, kl: KlPenalty, accelerator: Accelerator
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
