"""The interface of an algorithm: how the rewards of a round become advantages, and the part of each reward in them.

Shapes: N rows of all ranks, the rows of a group consecutive; K rewards, NaN where a reward does not apply. An all-NaN
row has no total: it gets no advantage and counts in no mean.

For a given divisor, an advantage is linear in the rewards: A_i = sum_k p_ik. The share of reward k is
    share_k = sum_i p_ik A_i / sum_i A_i^2 .

The shares sum to 1; a reward that pulls in the opposite direction has a negative share. They describe the given
advantages, and do not predict a training without the reward.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rlhf_cli.rewards.stack.aggregating import Aggregate
from rlhf_cli.rewards.stack.returned_scores import TokenValues
from rlhf_cli.rewards.stack.reward_matrix import Fill, Settled

EPS = 1e-4
"""TRL adds this to a deviation before it divides by it."""
SAME = 1e-6
"""Two sets of advantages are equal if they differ by less than this share of the largest."""


@dataclass(frozen=True)
class Given:
    """What TRL sums: a (N, K) `matrix` by (K,) `weights`.

    `contributions` (N, K) are the parts of the totals by reward; they add up to the totals before clipping.
    `is_clipped`: the matrix has clipped totals already.
    """

    matrix: Tensor
    weights: Tensor
    contributions: Tensor
    is_clipped: bool = False

    @property
    def totals(self) -> Tensor:
        """Return the (N,) totals as TRL computes them, NaN for all-NaN rows."""
        return summed(self.matrix * self.weights)


@dataclass(frozen=True)
class Round:
    """A scored round as one rank sees it: B rows of its own with C tokens, among the N rows of all ranks.

    `given`: what TRL summed. `lengths` (N,): tokens of the completions. `own`: this rank's rows among the N.
    `is_completion`, `is_trained` (B, C) bool: the token is no padding; it is in the loss. `advantages` (B,): TRL's.
    `logged`: the advantages that TRL logged, the newest last. `token_values`: `RewardStack.token_values`. `gather`
    concatenates a tensor of all ranks.
    """

    settled: Settled
    given: Given
    aggregate: Aggregate
    num_generations: int
    step: int
    lengths: Tensor
    own: slice
    is_completion: Tensor
    is_trained: Tensor
    advantages: Tensor
    logged: Sequence[float]
    token_values: Callable[[str, int, float], TokenValues | None]
    gather: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class RoundAdvantages:
    """The advantages of a round: `used` (B,) or (B, C) of this rank, None for TRL's; `by_row` (N,) for the table.

    `shares`: name -> share of each reward; None if the rewards' parts do not add up to the advantages.
    """

    shares: dict[str, float] | None
    used: Tensor | None = None
    by_row: Sequence[float] = ()


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """How a trainer makes advantages; a subclass sets what differs.

    `fill`: what an excluded entry counts as (`reward_matrix.filled`). `compares_groups`: a row is compared with the
    rows of its prompt, so groups of equal totals teach nothing. `is_dead_by_totals`: a round with equal totals in each
    of them teaches nothing. `kl_coef` is the coefficient of a KL divergence that the trainer subtracts from the totals,
    `clip_range` its bounds for them. `why_not_replayed` says why stored rollouts do not determine the advantages; None
    if they do.
    """

    fill: ClassVar[Fill] = "group"
    compares_groups: ClassVar[bool] = True
    is_dead_by_totals: ClassVar[bool] = True
    why_not_replayed: ClassVar[str | None] = None
    kl_coef: float = 0.0
    clip_range: tuple[float, float] | None = None

    @property
    def is_scaled_by_round(self) -> bool:
        """Return whether the advantages of a row depend on the rows of other prompts."""
        return False

    def given(self, settled: Settled, aggregate: Aggregate, num_generations: int) -> Given:
        """Return what TRL is to sum."""
        return Given(settled.for_trl, settled.trl_weights, settled.for_trl * settled.trl_weights)

    def compared(self, given: Given) -> Tensor:
        """Return the (N,) totals that the advantages compare, clipped as TRL clips them; NaN for all-NaN rows."""
        clip = None if given.is_clipped else self.clip_range
        return given.totals if clip is None else given.totals.clamp(*clip)

    def of_round(self, scored: Round) -> RoundAdvantages:
        """Return the advantages that the loss uses, and the rewards' shares of them."""
        raise NotImplementedError(f"{type(self).__name__} has a trainer of its own")


@dataclass(frozen=True)
class GroupAlgorithm(Algorithm):
    """An algorithm that TRL computes itself, from the totals of each group. `parts` has its formula."""

    @abstractmethod
    def parts(self, contributions: Tensor, num_generations: int) -> Tensor:
        """Return the (N, K) parts of the advantages, from (N, K) weighted rewards; 0 for all-NaN rows.

        The operations are TRL 1.16's, in TRL's order and precision. So a single column gives bitwise TRL's advantages,
        also in a group whose deviation is near 0, where rounding errors are divided by EPS.
        """

    def advantages(self, totals: Tensor, num_generations: int) -> Tensor:
        """Return the trainer's (N,) advantages of (N,) totals: the totals are a single reward."""
        return self.parts(totals.unsqueeze(1), num_generations).squeeze(1)

    def of_round(self, scored: Round) -> RoundAdvantages:
        """Return the shares of TRL's own advantages."""
        each, contributions = scored.num_generations, scored.given.contributions
        everyones = scored.gather(scored.advantages)
        excess = self.excess(everyones, summed(contributions).to(everyones), each, scored.logged)
        both = torch.cat([everyones.double(), excess.double().reshape(1)]).cpu()  # one wait
        if not self.has_parts(scored.aggregate, each):
            return RoundAdvantages({})
        is_other = bool(both[-1] > 0)
        return RoundAdvantages(None if is_other else self.shares(scored.settled.names, contributions, both[:-1], each))

    def excess(self, advantages: Tensor, totals: Tensor, num_generations: int, logged: Sequence[float]) -> Tensor:
        """Return a scalar, at most 0 if the parts add up to the (N,) advantages that a trainer uses.

        `logged` ends with the advantages that TRL logged.
        """
        difference = advantages - self.advantages(totals, num_generations)
        return difference.abs().max() - SAME * advantages.abs().max()

    def has_parts(self, aggregate: Aggregate, num_generations: int) -> bool:
        """Return whether the advantages are linear in the rewards."""
        return not callable(aggregate) and num_generations > 1

    def shares(
        self, names: Sequence[str], contributions: Tensor, advantages: Tensor, num_generations: int
    ) -> dict[str, float]:
        """Return name -> share of the (N,) advantages, for the K names; empty if every advantage is 0."""
        return shares(names, self.parts(contributions.double(), num_generations).T, advantages)


def shares(
    names: Sequence[str],
    parts: Tensor,
    advantages: Tensor,
    sum_over_ranks: Callable[[Tensor], Tensor] = lambda sums: sums,
    *,
    is_whitened: bool = False,
) -> dict[str, float]:
    """Return name -> share, from (K, ...) parts and (...) advantages; empty if every advantage is 0.

    `sum_over_ranks` is given 1-D float64 tensors. `is_whitened`: the parts add up to A before whitening. With
    A' = (sum_k p_k - mean) / std and sum A' = 0, the shares become sum p_k A' / sum_k sum p_k A' .
    """
    used = advantages.double()
    along = (parts.double() * used).flatten(1).sum(dim=1)
    sums = sum_over_ranks(torch.cat([along, (used**2).sum().unsqueeze(0)])).cpu()
    along, energy = sums[:-1], sums[-1]
    if energy == 0.0:
        return {}
    return dict(zip(names, (along / (along.sum() if is_whitened else energy)).tolist(), strict=True))


def advantage_metrics(by_name: dict[str, float]) -> dict[str, float]:
    """Return the shares under the names of their metrics."""
    return {f"rewards/{name}/advantage_share": share for name, share in by_name.items()}


def summed(contributions: Tensor) -> Tensor:
    """Return the (N,) sums of (N, K) weighted rewards, NaN for all-NaN rows."""
    return contributions.nansum(dim=1).masked_fill(contributions.isnan().all(dim=1), torch.nan)


def deviation(values: Tensor) -> Tensor:
    """Return the unbiased deviation over the last dimension without NaN; NaN for fewer than two values."""
    mean = torch.nanmean(values, dim=-1, keepdim=True)
    variance = torch.nanmean((values - mean) ** 2, dim=-1)
    count = (~values.isnan()).sum(dim=-1).to(values)
    return torch.sqrt(variance * (count / (count - 1)))
