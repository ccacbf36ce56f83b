"""Convert the gathered matrix of raw scores to the one that TRL sums, and place rewards on tokens.

This needs the rows of all ranks: N rows, K components. NaN means "no score" or "does not apply". The matrices are small
and lie on the CPU: a GPU would be waited for at every number that is logged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rlhf_cli.numerics.reward_columns import Fill, RunningDeviation, clipped, divisors, filled, normalized_in_group
from rlhf_cli.rewards.stack.aggregating import Aggregate, aggregated, counting
from rlhf_cli.rewards.stack.component import Component
from rlhf_cli.rewards.stack.returned_scores import TokenValues
from rlhf_cli.text.json_values import finite_or_none


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
        """Return the (N,) totals in reward units, NaN if a row has no score; `reward` is their mean.

        They equal the sums of TRL except for z-scores, whose mean is always 0.
        """
        if not self.is_z_scored:
            return self.totals
        return torch.where(self.is_unscorable, torch.nan, self.contributions.nansum(dim=1))


def settle(
    raw: Tensor,
    fixed: Tensor,
    weights: Tensor,
    components: Sequence[Component],
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
    """Return the settled batch and the updated running deviations.

    raw: (N, K + E); the last E columns are environments' own. fixed: (N, K), a number that replaces a score (after a
    closed gate or a failure), else NaN. weights: (K + E,). Only training updates `running`. is_left_out: (N,), True =
    the row counts nowhere and is only visible in `raw`. is_replaced: (N,), True = the row's scores are logged, but
    replaced in the total. fill: the value of an excluded entry (see `filled`).
    """
    seen = raw if is_left_out is None else raw.masked_fill(is_left_out.unsqueeze(1), torch.nan)
    if is_left_out is not None:
        fixed = fixed.masked_fill(is_left_out.unsqueeze(1), torch.nan)
    unfilled, dividing = seen.clone(), torch.ones_like(fixed)
    running = dict(running)
    for index, component in enumerate(components):
        if component.offset != 0.0 or component.clip is not None or component.normalize != "none":
            values = clipped(seen[:, index], component.offset, component.clip)
            state = running.get(component.name, RunningDeviation())
            if component.normalize == "running" and is_training:
                state = running[component.name] = state.updated(values)
            dividing[:, index] = divisors(values, component.normalize, num_generations, state)
            unfilled[:, index] = values / dividing[:, index]
    own = slice(0, len(components))
    unfilled[:, own] = torch.where(fixed.isnan(), unfilled[:, own], fixed)
    counted = counting({one.name: one for one in components}, names[len(components) :])
    is_counted = torch.tensor([name in counted for name in names])
    is_unscorable = unfilled[:, is_counted].isnan().all(dim=1, keepdim=True)
    counting_rows = unfilled.masked_fill(is_unscorable, torch.nan)
    effective = _filled(counting_rows, is_replaced, num_generations, fill)
    settled = Settled(tuple(names), raw, unfilled, effective, dividing, weights, is_counted, effective, weights)
    settled = replace(settled, is_replaced=is_replaced)
    if aggregate == "normalize_then_sum":
        # An excluded entry is 0, the mean of a z-score; the deviation is that of the rows where it applies.
        normalized = _filled(normalized_in_group(counting_rows, num_generations), is_replaced, num_generations, "group")
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
    """Return (N, K) values with excluded entries filled for the comparison within the group.

    A replaced row is worth only its penalty, so it counts as 0 for every reward, applying or not. With its scores in
    the fill, a row to which the reward does not apply would profit from the replaced row's loss.
    """
    if is_replaced is None:
        return filled(values, num_generations, fill)
    replaced_rows = is_replaced & ~values.isnan().all(dim=1)
    counting = values.masked_fill(replaced_rows.unsqueeze(1), 0.0)
    return torch.where(values.isnan(), filled(counting, num_generations, fill), values)


def _aggregated(function: Callable[..., Sequence[float | None]], settled: Settled) -> Tensor:
    """Return the (N,) totals of the user's function, NaN if it gave None or no component applies.

    The function does not see rows to which no component applies.
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


def token_rewards(
    token_values: Callable[[str, int, float], TokenValues | None],
    settled: Settled,
    is_in_completion: Tensor,
    own_rows: slice,
) -> tuple[Tensor, Tensor]:
    """Return (values, is_rewarded) of shapes (K, rows of this rank, tokens) and (rows, tokens); True = rewarded.

    A dense score is placed on its tokens. A plain score, or the number of a closed gate or a failure, is placed on the
    completion's last token. A row whose rewards a penalty replaces has everything on the last token: the rewards cancel
    there, and no earlier token is charged for what the tokens before it earned. An excluded component rewards no
    position.

    Args:
        token_values: `RewardStack.token_values`: reward name, row, divisor -> the row's values, None if not dense.
        settled: of all ranks.
        is_in_completion: (rows, tokens), True = not padding.
        own_rows: this rank's rows of `settled`.
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
    """Return (K, rows of this rank, tokens) with each component's part of the total on the last completion token.

    All other entries are 0, as are rows without tokens or score. Arguments as in `token_rewards`.
    """
    device = is_in_completion.device
    parts = (settled.for_trl * settled.trl_weights)[own_rows].nan_to_num(0.0).T.to(device, torch.float32)
    length = is_in_completion.sum(dim=1)
    positions = torch.arange(is_in_completion.shape[1], device=device)
    is_last = positions == (length - 1).unsqueeze(1)
    return parts.unsqueeze(2) * is_last
