"""Log every reward: raw and effective means, gates, failures, calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from accelerate.utils import gather_object
from torch import Tensor

from rlhf_cli.rewards.stack.component import Component, RewardOutcome
from rlhf_cli.rewards.stack.reward_matrix import Settled
from rlhf_cli.tables.trl_values import ROUND, STEP, TOKENS, TRUNCATED
from rlhf_cli.text.json_values import finite_or_none
from rlhf_cli.truncation import Endings

if TYPE_CHECKING:
    from accelerate import Accelerator

_COUNTED = ("num_open", "num_excluded", "num_errors", "timeouts", "calls", "calls_saved", "seconds")
TOTAL_COLUMN = "total"
"""Column of the completions table with the rows' totals; `reward` is their mean."""
_MAX_CORRELATED = 8
"""Limit on the components whose pairs are logged; more pairs would not be read."""


ROUNDING = 4 * torch.finfo(torch.float32).eps
"""Totals are equal if they differ by less than this share of the largest: 4 units in the last place of float32."""


def outcome_counts(outcomes: Sequence[RewardOutcome], accelerator: Accelerator) -> Tensor:
    """Return (K, 7), each component's counts in the order of `_COUNTED`, summed over ranks; `seconds` is averaged."""
    own = [[float(getattr(outcome, name)) for name in _COUNTED] for outcome in outcomes]
    summed = torch.tensor(gather_object([own])).sum(dim=0)
    summed[:, -1] /= accelerator.num_processes
    return summed


def component_metrics(settled: Settled, counts: Tensor) -> dict[str, float]:
    """Return metric -> value for a batch with the counts of `outcome_counts`; NaN if no row was scored.

    `rewards/NAME/mean` and `/std` are over the raw scores of the rows where the reward applies. `effective_mean` is the
    mean of its part in the total over the scorable rows, and `weighted_mean` is that times the weight. The weighted
    means sum to `reward`.
    """
    scorable = ~settled.is_unscorable
    metrics: dict[str, float] = {}
    for index, name in enumerate(settled.names):
        raw = settled.raw[:, index]
        raw = raw[~raw.isnan()]
        effective = settled.effective[scorable, index]
        prefix = f"rewards/{name}"
        metrics[f"{prefix}/mean"] = raw.mean().item() if raw.numel() else torch.nan
        metrics[f"{prefix}/std"] = raw.std().item() if raw.numel() > 1 else torch.nan
        metrics[f"{prefix}/effective_mean"] = effective.mean().item() if effective.numel() else torch.nan
        metrics[f"{prefix}/weighted_mean"] = metrics[f"{prefix}/effective_mean"] * settled.weights[index].item()
        metrics[f"{prefix}/weight"] = settled.weights[index].item()
        if index < len(counts):
            opened, excluded, errors, timeouts, calls, saved, seconds = counts[index].tolist()
            metrics[f"{prefix}/open_fraction"] = opened / settled.raw.shape[0]
            metrics |= {f"{prefix}/excluded": excluded, f"{prefix}/errors": errors, f"{prefix}/timeouts": timeouts}
            metrics |= {f"{prefix}/calls": calls, f"{prefix}/calls_saved": saved, f"{prefix}/seconds": seconds}
    if settled.is_z_scored:
        total = settled.row_totals[scorable]
        metrics["reward"] = total.mean().item() if total.numel() else torch.nan
        metrics["reward_std"] = total.std().item() if total.numel() > 1 else torch.nan
    return metrics | _correlations(settled)


def _correlations(settled: Settled) -> dict[str, float]:
    """Return Pearson's correlation of each pair of components' raw scores, over the rows where both apply."""
    metrics: dict[str, float] = {}
    names = settled.names[:_MAX_CORRELATED]
    for first in range(len(names)):
        for second in range(first + 1, len(names)):
            pair = settled.raw[:, [first, second]]
            pair = pair[~pair.isnan().any(dim=1)].double()
            if len(pair) > 1 and bool((pair.std(dim=0) > 0).all()):
                value = torch.corrcoef(pair.T)[0, 1].item()
                metrics[f"rewards/correlation/{names[first]}/{names[second]}"] = value
    return metrics


def share_of_dead_groups(totals: Tensor, group_size: int) -> float:
    """Return the share of groups of `group_size` rows with equal totals (N,); NaN (no total) is ignored.

    TRL checks for a deviation below 1e-8, which misses eight totals of 1.68572: their deviation is 2.5e-7.
    """
    totals = totals.double().unflatten(0, (-1, group_size))
    largest = totals.nan_to_num(0.0).abs().max(dim=1).values
    return (spread_within(totals) <= ROUNDING * largest).double().mean().item()


def spread_within(values: Tensor) -> Tensor:
    """Return (groups,) max minus min of (groups, rows), ignoring NaN; 0 for a group without values."""
    is_known = ~values.isnan()
    high = values.masked_fill(~is_known, -torch.inf).max(dim=1).values
    low = values.masked_fill(~is_known, torch.inf).min(dim=1).values
    return torch.where(is_known.any(dim=1), high - low, 0.0)


def table_columns(
    settled: Settled, components: Sequence[Component], outcomes: Sequence[RewardOutcome], rows: slice
) -> dict[str, list[object]]:
    """Return columns of the completions table for this rank's `rows`: totals, effective and weighted values, gates.

    Each batch has the same columns: TRL keeps a table whose columns must stay equally long.
    """
    columns: dict[str, list[object]] = {TOTAL_COLUMN: list(map(finite_or_none, settled.row_totals[rows].tolist()))}
    contributions = settled.contributions
    for index, name in enumerate(settled.names):
        columns[f"{name}.effective"] = settled.effective[rows, index].tolist()
        columns[f"{name}.weighted"] = contributions[rows, index].tolist()
        if index < len(outcomes):
            if components[index].gates:
                columns[f"{name}.closed_by"] = list(outcomes[index].closed_by)
            if components[index].on_error != "raise":
                columns[f"{name}.error"] = list(outcomes[index].errors)
    return columns


def rollout_columns(endings: Endings, rows: slice, number: int | None, step: int) -> dict[str, list[object]]:
    """Return columns of the completions table for this rank's `rows`: round, optimizer step, truncation, length.

    `number` counts the rounds of a training; None in an evaluation.
    """
    cut, lengths = endings.is_truncated[rows].tolist(), endings.lengths[rows].tolist()
    return {ROUND: [number] * len(cut), STEP: [step] * len(cut), TRUNCATED: cut, TOKENS: lengths}
