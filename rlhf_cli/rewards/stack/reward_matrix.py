"""Convert the gathered matrix of raw scores to the one that TRL sums, truncate it, and place rewards on tokens.

This needs the rows of all ranks: N rows, K components. NaN means "no score" or "does not apply". The matrices are small
and lie on the CPU: a GPU would be waited for at every number that is logged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from rlhf_cli.numerics.score_scaling import RunningDeviation, deviation
from rlhf_cli.rewards.stack.aggregating import Aggregate, aggregated, counting
from rlhf_cli.rewards.stack.component import Component
from rlhf_cli.rewards.stack.returned_scores import TokenValues
from rlhf_cli.rewards.stack.scored_rows import scaled_scores
from rlhf_cli.truncation import COMPONENT, Endings, TruncationPolicy

Fill = Literal["group", "zero"]


@dataclass(frozen=True)
class Settled:
    """One batch's rewards; environments' own columns follow the stack's.

    `raw` (N, K): scores. `unfilled` (N, K): after offset, clip, normalise and gate, NaN if excluded. `effective`: the
    same with excluded entries filled; all-NaN rows are unscorable: no reward with a weight applies. `divisors` (N, K of
    the stack): the divisors of normalising. `weights` (K,). `is_counted` (K,) bool, False = the reward only watches.
    `for_trl` (N, K) and `trl_weights` (K,): what TRL sums. `is_z_scored`: that sum is not in reward units.
    `is_replaced` (N,) bool, True = the truncation component replaces the row's rewards; None for no row.
    """

    names: tuple[str, ...]
    raw: Tensor
    unfilled: Tensor
    effective: Tensor
    divisors: Tensor
    weights: Tensor
    is_counted: Tensor
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
        """Return (N,) bool, True = no component with a weight applies."""
        return self.effective.isnan().all(dim=1)

    @property
    def totals(self) -> Tensor:
        """Return the (N,) totals as TRL will sum them, NaN if a row has no score."""
        summed = (self.for_trl * self.trl_weights).nansum(dim=1)
        return torch.where(self.for_trl.isnan().all(dim=1), torch.nan, summed)

    @property
    def row_totals(self) -> Tensor:
        """Return the (N,) totals in reward units, NaN if a row has no score: TRL's sums, except for z-scores."""
        if not self.is_z_scored:
            return self.totals
        return torch.where(self.is_unscorable, torch.nan, self.contributions.nansum(dim=1))


@dataclass(frozen=True)
class SettleRules:
    """How an experiment's rewards become totals, which does not change from batch to batch."""

    components: Sequence[Component]
    aggregate: Aggregate = "sum"
    num_generations: int = 1
    truncation: TruncationPolicy = field(default_factory=TruncationPolicy)
    fill: Fill = "group"


def settle(
    raw: Tensor,
    fixed: Tensor,
    weights: Tensor,
    rules: SettleRules,
    running: dict[str, RunningDeviation],
    *,
    endings: Endings | None = None,
    environments: Sequence[str] = (),
    is_training: bool = True,
) -> tuple[Settled, dict[str, RunningDeviation]]:
    """Return the settled batch and the updated running deviations.

    raw: (N, K + E); the last E columns are those of `environments`. fixed: (N, K), a number that replaces a score
    (after a closed gate or a failure), else NaN. weights: (K + E,). Only training updates `running`. A row that the
    truncation policy excludes is only visible in `raw`. `add_truncation` adds the policy's own component.
    """
    policy, num_generations = rules.truncation, rules.num_generations
    is_replaced = None if endings is None else policy.replaced(endings)
    seen = raw
    if endings is not None and (is_left_out := policy.leaves_out(endings)) is not None:
        seen, fixed = (matrix.masked_fill(is_left_out.unsqueeze(1), torch.nan) for matrix in (raw, fixed))
    names = (*(component.name for component in rules.components), *environments)
    own = slice(0, len(rules.components))
    scaled, dividing, running = scaled_scores(
        *(seen[:, own].numpy(), fixed.numpy(), rules.components, running),
        num_generations=num_generations,
        is_training=is_training,
    )
    unfilled = torch.cat([torch.from_numpy(scaled), seen[:, own.stop :]], dim=1)
    counted = counting({component.name: component for component in rules.components}, environments)
    is_counted = torch.tensor([name in counted for name in names])
    is_unscorable = unfilled[:, is_counted].isnan().all(dim=1, keepdim=True)
    counting_rows = unfilled.masked_fill(is_unscorable, torch.nan)
    effective = filled(counting_rows, num_generations, rules.fill, is_replaced)
    divisors = torch.from_numpy(dividing)
    matrices = (raw, unfilled, effective, divisors, weights, is_counted, effective, weights)
    settled = Settled(names, *matrices, is_replaced=is_replaced)
    if rules.aggregate == "normalize_then_sum":
        # An excluded entry is 0, the mean of a z-score; the deviation is that of the rows where it applies.
        normalized = normalized_in_group(counting_rows, num_generations)
        normalized = filled(normalized, num_generations, "group", is_replaced)
        settled = replace(settled, for_trl=normalized, is_z_scored=True)
    elif callable(rules.aggregate):
        settled = _with_totals(settled, rules.aggregate)
    return settled, running


def _with_totals(settled: Settled, function: Callable[..., Sequence[float | None]]) -> Settled:
    """Return the batch with the totals of the user's function, of scorable rows only, in TRL's first column."""
    is_given = ~settled.is_unscorable
    rewards, weights = settled.unfilled[is_given].numpy(), settled.weights.tolist()
    totals = torch.full_like(settled.raw[:, 0], torch.nan)
    totals[is_given] = torch.from_numpy(aggregated(function, settled.names, rewards, weights)).to(totals)
    for_trl, first = torch.zeros_like(settled.effective), torch.zeros_like(settled.weights)
    for_trl[:, 0], first[0] = totals, 1.0
    for_trl[totals.isnan()] = torch.nan
    return replace(settled, for_trl=for_trl, trl_weights=first)


def add_truncation(settled: Settled, policy: TruncationPolicy, endings: Endings) -> Settled:
    """Return the settled batch with the component `truncation` as its last column, if the policy changes totals.

    `raw` holds what it adds to each row's total, mostly 0. A row to which no reward applies stays unscorable. If TRL
    sums z-scores, a policy that replaces totals cancels these in `for_trl`, and the rewards in the logged columns.
    """
    if not policy.changes_total:
        return settled
    added = policy.added(settled.row_totals, endings)
    added_for_trl = policy.added(settled.totals, endings)
    is_added = torch.where(added == 0.0, torch.nan, added)  # on tokens, an added 0 is not a reward at all
    one = torch.ones(1, device=added.device)
    for_trl = torch.where(settled.for_trl.isnan().all(dim=1), torch.nan, added_for_trl)

    def beside(matrix: Tensor, column: Tensor) -> Tensor:
        return torch.cat([matrix, column.to(matrix.dtype).unsqueeze(1)], dim=1)

    return replace(
        settled,
        names=(*settled.names, COMPONENT),
        raw=beside(settled.raw, added),
        unfilled=beside(settled.unfilled, torch.where(settled.is_unscorable, torch.nan, is_added)),
        effective=beside(settled.effective, torch.where(settled.is_unscorable, torch.nan, added)),
        weights=torch.cat([settled.weights, one]),
        is_counted=torch.cat([settled.is_counted, one.bool()]),
        for_trl=beside(settled.for_trl, for_trl),
        trl_weights=torch.cat([settled.trl_weights, one]),
    )


FLAG = "is_truncated"
"""Dataset column, rollout field or environment attribute: a row was truncated elsewhere, or the name of its ending."""


def find_truncated(
    completion_ids: Sequence[Sequence[int]],
    ending_ids: Collection[int],
    max_completion_length: int | None,
    has_stopped: Callable[[Sequence[int]], bool] = lambda ids: False,
) -> list[bool]:
    """Return one bool per row: it reached the limit without an ending token.

    `ending_ids` are all end-of-sequence ids of the model. `has_stopped` says whether a row ends at a stop string, also
    at the limit. A row that stopped before the limit otherwise (an environment ended the episode) is terminated.
    Without a limit, only a row with such an id or a stop string is.
    """
    return [
        len(ids) >= (max_completion_length or 0) and (not ids or ids[-1] not in ending_ids) and not has_stopped(ids)
        for ids in completion_ids
    ]


def column(completions: Sequence[object], **_: object) -> list[float]:
    """Represent the truncation component among TRL's reward functions; its values are settled later."""
    return [0.0] * len(completions)


column.__name__ = COMPONENT


def truncation_metrics(settled: Settled, endings: Endings) -> dict[str, float]:
    """Return the truncated fraction, and the mean score of these rows before and after the policy (NaN for none)."""
    cut = endings.is_truncated
    after = settled.row_totals
    added = settled.raw[:, settled.names.index(COMPONENT)] if COMPONENT in settled.names else torch.zeros_like(after)
    return {
        "rewards/truncation/fraction": cut.float().mean().item(),
        "rewards/truncation/score_before": (after[cut] - added[cut]).nanmean().item(),
        "rewards/truncation/score_after": after[cut].nanmean().item(),
    }


def where_rewards_apply(settled: Settled) -> Tensor:
    """Return (N, K) settled rewards, NaN if one does not apply; the truncation component always applies.

    If it replaces a row's rewards, that row gets 0 for each of them, so that other rows are not compared with its loss.
    """
    is_excluded = settled.unfilled.isnan() & settled.is_counted
    if COMPONENT not in settled.names:
        return settled.for_trl.masked_fill(is_excluded, torch.nan)
    added = settled.names.index(COMPONENT)
    is_excluded[:, added] = False
    rewards = settled.for_trl.masked_fill(is_excluded, torch.nan)
    if settled.is_replaced is not None:
        replaced_rows = settled.is_replaced & ~settled.is_unscorable
        rewards[replaced_rows] = 0.0
        rewards[replaced_rows, added] = settled.totals[replaced_rows]
    return rewards


def filled(values: Tensor, num_generations: int, fill: Fill = "group", is_replaced: Tensor | None = None) -> Tensor:
    """Return (N, K) with every excluded entry set to a number that neither helps nor hurts its row.

    `zero`: it adds 0 to the total; for a trainer without groups, and for RLOO, whose baseline excludes it
    (algorithms/rloo.py). `group`: its component's mean over the group's rows where it applies. That equals the group's
    mean, so its part of an advantage is exactly 0 under GRPO, whose baseline is that mean; without such a row it is 0.
    A row in which no component applies stays NaN: TRL gives it no advantage and counts it in no mean. A replaced row is
    worth only its penalty, so it counts as 0 for every reward: else a row to which a reward does not apply
    would profit from the loss of the replaced row.
    """
    counted = values
    if is_replaced is not None:
        counted = values.masked_fill((is_replaced & ~values.isnan().all(dim=1)).unsqueeze(1), 0.0)
    if counted.isnan().any():
        grouped = counted.view(-1, num_generations, values.shape[1])
        mean = grouped.nanmean(dim=1, keepdim=True).nan_to_num(0.0).expand_as(grouped).reshape_as(values)
        applies_somewhere = ~counted.isnan().all(dim=1, keepdim=True)
        instead = mean if fill == "group" else torch.zeros_like(mean)
        counted = torch.where(counted.isnan() & applies_somewhere, instead, counted)
    return torch.where(values.isnan(), counted, values)


def normalized_in_group(effective: Tensor, num_generations: int, eps: float = 1e-4) -> Tensor:
    """Return (N, K), each component z-scored within its group, as GDPO does before it sums (arXiv 2601.05242)."""
    grouped = effective.view(-1, num_generations, effective.shape[1])
    mean = grouped.nanmean(dim=1, keepdim=True)
    spread = torch.from_numpy(deviation(grouped.transpose(1, 2).numpy())).transpose(1, 2)
    return ((grouped - mean) / (spread + eps)).reshape_as(effective)


def token_rewards(
    token_values: Callable[[str, int, float], TokenValues | None],
    settled: Settled,
    is_in_completion: Tensor,
    own_rows: slice,
) -> tuple[Tensor, Tensor]:
    """Return (values, is_rewarded) of shapes (K, rows of this rank, tokens) and (rows, tokens); True = rewarded.

    A dense score is placed on its tokens. A plain score, or the number of a closed gate or a failure, is placed on the
    completion's last token. A row whose rewards a penalty replaces has everything on the last token: the rewards cancel
    there, and no earlier token pays for the scores of others. An excluded component rewards no position.

    token_values: `RewardStack.token_values`. is_in_completion: (rows, tokens), True = not padding. own_rows: this
    rank's rows of `settled`, which has those of all ranks.
    """
    # Filled as lists: setting single entries of a tensor costs more than everything else here.
    num_rows, num_tokens = is_in_completion.shape
    values = [[[0.0] * num_tokens for _ in range(num_rows)] for _ in settled.names]
    rewarded = [[False] * num_tokens for _ in range(num_rows)]
    last = (is_in_completion.sum(dim=1) - 1).tolist()
    weights = settled.weights.tolist()
    unfilled, divisors = settled.unfilled[own_rows].tolist(), settled.divisors[own_rows].tolist()
    is_replaced = [False] * num_rows if settled.is_replaced is None else settled.is_replaced[own_rows].tolist()
    counted = settled.is_counted.tolist()
    for row, effective in enumerate(unfilled):
        if last[row] < 0:
            continue
        for index, total in enumerate(effective):
            if total != total or not counted[index]:  # NaN: the component does not apply
                continue
            tokens = None
            if index < len(divisors[row]) and not is_replaced[row]:
                tokens = token_values(settled.names[index], row, divisors[row][index])
            for token, value in [(last[row], total)] if tokens is None else enumerate(tokens):
                if value is not None:
                    values[index][row][token] += weights[index] * value
                    rewarded[row][token] = True
    device = is_in_completion.device
    return torch.tensor(values, device=device), torch.tensor(rewarded, device=device)


def last_token_rewards(settled: Settled, is_in_completion: Tensor, own_rows: slice) -> Tensor:
    """Return (K, rows of this rank, tokens) with each component's part of the total on the last token, else 0."""
    device = is_in_completion.device
    parts = (settled.for_trl * settled.trl_weights)[own_rows].nan_to_num(0.0).T.to(device, torch.float32)
    length = is_in_completion.sum(dim=1)
    positions = torch.arange(is_in_completion.shape[1], device=device)
    is_last = positions == (length - 1).unsqueeze(1)
    return parts.unsqueeze(2) * is_last
