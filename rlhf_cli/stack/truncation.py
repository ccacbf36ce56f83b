"""Decide what an answer that was cut off means: one policy for every trainer, applied to the row's total in reward
units.

A completion that ends in an end-of-sequence token is *terminated*; one that the length limit cut is *truncated*. They
are never one `done`: a terminated answer is worth what it earned, a truncated one might have gone on.

    none            as if terminated
    eos_penalty     total - penalty, or -penalty in the total's place (Ziegler et al., arXiv 1909.08593)
    bootstrap       the critic's value of the state after the last token follows (Pardo et al., arXiv 1712.00378),
                    beside what the row earned, where rewards come token by token; in its place, where a score is given
                    once for a whole answer and would be counted again and again by the value of what follows
    exclude         the row has no gradient and no place in any mean
    soft_overlong   a ramp down to -penalty over the last tokens before the limit (DAPO, arXiv 2503.14476, equation 13)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rlhf_cli.numerics.overlong import soft_overlong
from rlhf_cli.stack.settling import Settled

FLAG = "is_truncated"
"""The dataset column, rollout field or environment attribute that says a row was cut elsewhere."""
COMPONENT = "truncation"
"""The name of what the policy adds to the total, among the rewards."""


@dataclass(frozen=True)
class Truncation:
    """Hold the policy. `penalty` is a size, subtracted; `cache_tokens` of soft_overlong is the length of its ramp.

    `replaces`: what the cut row had earned gives way to eos_penalty's -penalty, or to bootstrap's value.
    """

    policy: str = "none"
    penalty: float = 1.0
    replaces: bool = False
    cache_tokens: int | None = None

    @property
    def changes_total(self) -> bool:
        """Return whether a component named `truncation` takes part in the sum."""
        return EFFECTS[self.policy].added is not None

    def leaves_out(self, endings: Endings) -> Tensor | None:
        """Return (N,) bool, True = the row counts nowhere; None where the policy leaves out none."""
        return endings.is_truncated if EFFECTS[self.policy].leaves_out else None

    def replaced(self, endings: Endings) -> Tensor | None:
        """Return (N,) bool, True = what the row's rewards came to gives way to a penalty; None where none does."""
        return endings.is_truncated if self.replaces and self.changes_total else None

    def goes_on(self, endings: Endings) -> Tensor:
        """Return (N,) bool, True = the return of the row goes on with the critic's value of its last state."""
        return endings.is_truncated & EFFECTS[self.policy].goes_on


@dataclass(frozen=True)
class Endings:
    """Hold how the rows of all ranks ended: `is_truncated` (N,) bool, `lengths` (N,) in tokens, `limit` of tokens.

    Without a limit it is the model's own window that cuts.
    """

    is_truncated: Tensor
    lengths: Tensor
    limit: int | None


def find_truncated(
    completion_ids: Sequence[Sequence[int]],
    ending_ids: Collection[int],
    max_completion_length: int | None,
    flags: Sequence[object],
) -> list[bool]:
    """Return one bool a row: it reached the limit without an ending token, or it is flagged as cut.

    `ending_ids` are all end-of-sequence ids the model declares. A row that stopped short of the limit without one (a
    stop string, an environment that ended the episode) is terminated; where there is no limit, only one with it is.
    """
    return [
        bool(flag) or (len(ids) >= (max_completion_length or 0) and (not ids or ids[-1] not in ending_ids))
        for ids, flag in zip(completion_ids, flags, strict=True)
    ]


def column(completions: Sequence[object], **_: object) -> list[float]:
    """Stand for the truncation component among TRL's reward functions; what it adds is settled later."""
    return [0.0] * len(completions)


column.__name__ = COMPONENT


def with_truncation(settled: Settled, truncation: Truncation, endings: Endings) -> Settled:
    """Return the settled batch with the component `truncation` added as its last column.

    `raw` holds what it adds to each row's total (0 to most). A row to which no reward applies stays so. Where TRL sums
    z-scores, what takes a total away takes away theirs there, and in what is logged the rewards'.
    """
    function = EFFECTS[truncation.policy].added
    assert function is not None
    added = function(settled.row_totals, truncation, endings)
    added_for_trl = function(settled.totals, truncation, endings)
    is_added = torch.where(added == 0.0, torch.nan, added)  # on tokens, a reward of nothing is not given at all
    one = torch.ones(1, device=added.device, dtype=settled.weights.dtype)
    effective = torch.where(settled.is_unscorable, torch.nan, added)
    for_trl = torch.where(settled.for_trl.isnan().all(dim=1), torch.nan, added_for_trl)
    return replace(
        settled,
        names=(*settled.names, COMPONENT),
        raw=_beside(settled.raw, added),
        unfilled=_beside(settled.unfilled, torch.where(settled.is_unscorable, torch.nan, is_added)),
        effective=_beside(settled.effective, effective),
        weights=torch.cat([settled.weights, one]),
        for_trl=_beside(settled.for_trl, for_trl),
        trl_weights=torch.cat([settled.trl_weights, one]),
    )


def eos_penalty(totals: Tensor, truncation: Truncation, endings: Endings) -> Tensor:
    """Return the (N,) penalties: -penalty for a row that was cut, and what it had earned taken away where that is
    replaced.
    """
    penalty = torch.full_like(totals, -truncation.penalty)
    if truncation.replaces:
        penalty = penalty - totals.nan_to_num(0.0)
    return torch.where(endings.is_truncated, penalty, torch.zeros_like(penalty))


def overlong_ramp(totals: Tensor, truncation: Truncation, endings: Endings) -> Tensor:
    """Return (N,) from 0 down to -penalty over the last tokens before the limit, whether or not the row was cut."""
    assert endings.limit is not None  # a ramp to nowhere is refused beforehand
    cache_tokens = truncation.cache_tokens or max(1, endings.limit // 5)
    return truncation.penalty * soft_overlong(endings.lengths, endings.limit, cache_tokens)


@dataclass(frozen=True)
class Effect:
    """Describe what a policy does to rows. `added` gives what it adds to each of the (N,) totals; None where it adds
    nothing.

    `leaves_out`: a row that was cut counts nowhere. `goes_on`: its return goes on with the critic's value.
    """

    added: Callable[[Tensor, Truncation, Endings], Tensor] | None = None
    leaves_out: bool = False
    goes_on: bool = False


EFFECTS = {
    "none": Effect(),
    "eos_penalty": Effect(added=eos_penalty),
    "bootstrap": Effect(goes_on=True),
    "exclude": Effect(leaves_out=True),
    "soft_overlong": Effect(added=overlong_ramp),
}
"""Policy -> what it does; the same names as in tables/truncation_policies.py."""


def truncation_metrics(settled: Settled, endings: Endings) -> dict[str, float]:
    """Return the fraction that was cut, and what such rows scored before and after the policy changed their totals.

    NaN where no row was cut, or none of those has a score.
    """
    cut = endings.is_truncated
    after = settled.row_totals
    index = settled.names.index(COMPONENT) if COMPONENT in settled.names else None
    added = settled.raw[:, index] if index is not None else torch.zeros_like(after)
    return {
        "rewards/truncation/fraction": cut.float().mean().item(),
        "rewards/truncation/score_before": _mean(after[cut] - added[cut]),
        "rewards/truncation/score_after": _mean(after[cut]),
    }


def _mean(values: Tensor) -> float:
    seen = values[~values.isnan()]
    return float(seen.mean()) if seen.numel() else torch.nan


def _beside(matrix: Tensor, added: Tensor) -> Tensor:
    return torch.cat([matrix, added.to(matrix.dtype).unsqueeze(1)], dim=1)
