"""Make the matrix TRL shall sum from the raw one it gathered: the part of the stack that needs all ranks' rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from rlhf_cli.json_values import finite_or_none
from rlhf_cli.numerics.reward_columns import (
    Fill,
    Normalize,
    RunningDeviation,
    clipped,
    divisors,
    filled,
    normalized_in_group,
)
from rlhf_cli.stack.aggregating import Aggregate, aggregated


class Rules(Protocol):
    """Name what is needed of a component to settle its column and to log it."""

    @property
    def name(self) -> str:
        """Return the name of the reward."""
        ...

    @property
    def offset(self) -> float:
        """Return the number that is subtracted from a score."""
        ...

    @property
    def clip(self) -> tuple[float, float] | None:
        """Return the bounds a score is held within, None for no bounds."""
        ...

    @property
    def normalize(self) -> Normalize:
        """Return whose deviation a score is divided by."""
        ...

    @property
    def gates(self) -> Sequence[object]:
        """Return the gates; here only whether there are any is read."""
        ...

    @property
    def on_error(self) -> object:
        """Return what a failed row gets; here only whether it is `raise` is read."""
        ...


@dataclass(frozen=True)
class Settled:
    """Hold one batch's rewards. N rows of all ranks, K components; environments' own columns follow the stack's.

    `raw` (N, K): scores, NaN where there are none. `unfilled` (N, K): after offset, clip, normalise and gate, NaN where
    excluded. `effective`: the same with excluded entries filled; NaN rows are unscorable. `divisors` (N, K of the
    stack): what normalising divided by. `weights` (K,). `for_trl` (N, K) with `trl_weights` (K,) is what TRL sums;
    `is_z_scored` when that is not in reward units. `is_replaced` (N,) bool, True = all of it gives way to what the
    truncation policy adds; None for no row.
    """

    names: tuple[str, ...]
    raw: Tensor
    unfilled: Tensor
    effective: Tensor
    divisors: Tensor
    weights: Tensor
    for_trl: Tensor
    trl_weights: Tensor
    is_z_scored: bool = False
    is_replaced: Tensor | None = None

    @property
    def contributions(self) -> Tensor:
        """Return the (N, K) weighted effective rewards; their row sums are the totals under aggregate=sum."""
        return self.effective * self.weights

    @property
    def is_unscorable(self) -> Tensor:
        """Return (N,) bool, True where no component applies."""
        return self.effective.isnan().all(dim=1)

    @property
    def totals(self) -> Tensor:
        """Return the (N,) totals as TRL will sum them, NaN where a row has no score."""
        summed = (self.for_trl * self.trl_weights).nansum(dim=1)
        return torch.where(self.for_trl.isnan().all(dim=1), torch.nan, summed)

    @property
    def row_totals(self) -> Tensor:
        """Return the (N,) totals in reward units, NaN where a row has no score; `reward` is their mean.

        They are what TRL sums but for z-scores, whose mean is 0 whatever the policy does.
        """
        if not self.is_z_scored:
            return self.totals
        return torch.where(self.is_unscorable, torch.nan, self.contributions.nansum(dim=1))


def settle(
    raw: Tensor,
    fixed: Tensor,
    weights: Tensor,
    rules: Sequence[Rules],
    running: dict[str, RunningDeviation],
    *,
    names: Sequence[str],
    aggregate: Aggregate,
    num_generations: int,
    is_training: bool,
    is_left_out: Tensor | None = None,
    is_replaced: Tensor | None = None,
    fill: Fill = "group",
) -> tuple[Settled, dict[str, RunningDeviation]]:
    """Return the settled batch and the running deviations after it.

    raw: (N, K + E), NaN for no score, the last E columns are environments' own. fixed: (N, K), a number that takes a
    score's place (a closed gate's, a failure's), else NaN. weights: (K + E,). Only training updates `running`.
    is_left_out: (N,) True = the row counts nowhere, whatever it scored; only `raw` still shows it. is_replaced: (N,)
    True = the row's scores are logged, but give way. fill: what an excluded entry counts as (see `filled`).
    """
    seen = raw if is_left_out is None else raw.masked_fill(is_left_out.unsqueeze(1), torch.nan)
    if is_left_out is not None:
        fixed = fixed.masked_fill(is_left_out.unsqueeze(1), torch.nan)
    is_fixed = ~fixed.isnan()
    unfilled, dividing = seen.clone(), torch.ones_like(fixed)
    running = dict(running)
    for index, rule in enumerate(rules):
        if rule.offset != 0.0 or rule.clip is not None or rule.normalize != "none":
            values = clipped(seen[:, index], rule.offset, rule.clip)
            state = running.get(rule.name, RunningDeviation())
            if rule.normalize == "running" and is_training:
                state = running[rule.name] = state.updated(values)
            dividing[:, index] = divisors(values, rule.normalize, num_generations, state)
            unfilled[:, index] = values / dividing[:, index]
    own = slice(0, len(rules))
    unfilled[:, own] = torch.where(is_fixed, fixed, unfilled[:, own])
    effective = _filled(unfilled, is_replaced, num_generations, fill)
    settled = Settled(
        tuple(names), raw, unfilled, effective, dividing, weights, effective, weights, is_replaced=is_replaced
    )
    if aggregate == "normalize_then_sum":
        # An excluded entry is 0, the mean of a z-score; the deviation is that of the rows where it applies.
        normalized = _filled(normalized_in_group(unfilled, num_generations), is_replaced, num_generations, "group")
        normalized = torch.where(settled.is_unscorable.unsqueeze(1), torch.nan, normalized.nan_to_num(0.0))
        settled = replace(settled, for_trl=normalized, is_z_scored=True)
    elif callable(aggregate):
        total = _aggregated(aggregate, settled)
        for_trl = torch.zeros_like(effective)
        for_trl[:, 0] = total
        for_trl[total.isnan()] = torch.nan
        first = torch.zeros_like(weights)
        first[0] = 1.0
        settled = replace(settled, for_trl=for_trl, trl_weights=first)
    return settled, running


def _filled(values: Tensor, is_replaced: Tensor | None, num_generations: int, fill: Fill) -> Tensor:
    """Return (N, K) values with excluded entries filled by what the others of the group will be compared with.

    A row that is replaced is worth its penalty and nothing else: it counts as 0 of every reward, applying or not. With
    its scores in the fill, a row to which the reward does not apply would gain from what another one has lost.
    """
    if is_replaced is None:
        return filled(values, num_generations, fill)
    gives_way = is_replaced & ~values.isnan().all(dim=1)
    counting = values.masked_fill(gives_way.unsqueeze(1), 0.0)
    return torch.where(values.isnan(), filled(counting, num_generations, fill), values)


def _aggregated(function: Callable[..., Sequence[float | None]], settled: Settled) -> Tensor:
    """Return the (N,) totals of the user's function, NaN where it gave None and where no component applies.

    It is not given the rows where none applies: they have no total, whatever it would make of nothing. Raises
    RewardFailed when it raises, RewardError when it does not return one finite number or None a row.
    """
    is_given = ~settled.is_unscorable
    totals = torch.full_like(settled.raw[:, 0], torch.nan)
    if not is_given.any():
        return totals
    rewards = {
        name: [finite_or_none(value) for value in column.tolist()]
        for name, column in zip(settled.names, settled.unfilled[is_given].unbind(dim=1), strict=True)
    }
    given = aggregated(function, rewards, dict(zip(settled.names, settled.weights.tolist(), strict=True)))
    found = [torch.nan if total is None else total for total in given]
    totals[is_given] = torch.tensor(found, dtype=torch.float64).to(totals)
    return totals
