"""Log every reward: raw and effective means, gates, failures, calls; explain rounds without a learning signal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING

import torch
from accelerate.utils import gather_object
from torch import Tensor

from rlhf_cli.rewards.stack.component import Component, RewardOutcome
from rlhf_cli.rewards.stack.reward_matrix import Settled
from rlhf_cli.tables.trl_values import ENDING, ROUND, STEP, TOKENS, TRUNCATED
from rlhf_cli.text.json_values import finite_or_none
from rlhf_cli.truncation import ENDINGS, Endings

if TYPE_CHECKING:
    from accelerate import Accelerator

_COUNTED = ("num_open", "num_excluded", "num_errors", "timeouts", "calls", "calls_saved", "seconds")
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
    means sum to `reward`. `rewards/correlation/A/B` is Pearson's, of raw scores over the rows where both apply.
    """
    scorable = ~settled.is_unscorable
    metrics: dict[str, float] = {}
    for index, name in enumerate(settled.names):
        raw = settled.raw[:, index]
        raw = raw[~raw.isnan()]
        effective = settled.effective[scorable, index]
        prefix = f"rewards/{name}"
        metrics[f"{prefix}/mean"] = raw.mean().item() if raw.numel() else torch.nan
        metrics[f"{prefix}/std"] = deviation(raw)
        metrics[f"{prefix}/effective_mean"] = effective.mean().item() if effective.numel() else torch.nan
        metrics[f"{prefix}/weighted_mean"] = metrics[f"{prefix}/effective_mean"] * settled.weights[index].item()
        metrics[f"{prefix}/weight"] = settled.weights[index].item()
        if index < len(counts):
            opened, *others = counts[index].tolist()
            metrics[f"{prefix}/open_fraction"] = opened / settled.raw.shape[0]
            names = (name.removeprefix("num_") for name in _COUNTED[1:])
            metrics |= {f"{prefix}/{name}": value for name, value in zip(names, others, strict=True)}
    if settled.is_z_scored:
        total = settled.row_totals[scorable]
        metrics["reward"] = total.mean().item() if total.numel() else torch.nan
        metrics["reward_std"] = deviation(total)
    for (first, one), (second, other) in combinations(enumerate(settled.names[:_MAX_CORRELATED]), 2):
        pair = settled.raw[:, [first, second]]
        pair = pair[~pair.isnan().any(dim=1)].double()
        if bool((pair != pair[:1]).any(dim=0).all()):
            metrics[f"rewards/correlation/{one}/{other}"] = torch.corrcoef(pair.T)[0, 1].item()
    return metrics


def deviation(values: Tensor) -> float:
    """Return the unbiased deviation of (N,) values, NaN for fewer than two: torch would warn."""
    return values.std().item() if values.numel() > 1 else torch.nan


def share_of_dead_groups(totals: Tensor, group_size: int) -> float:
    """Return the share of groups of `group_size` rows with equal totals (N,); NaN (no total) is ignored.

    TRL checks for a deviation below 1e-8, which misses eight totals of 1.68572: their deviation is 2.5e-7.
    """
    return 1 - differing_groups(totals, group_size).double().mean().item()


def differing_groups(values: Tensor, group_size: int) -> Tensor:
    """Return (groups,) bool, whether the values (N,) within a group differ by more than rounding; NaN is ignored."""
    values = values.double().unflatten(0, (-1, group_size))
    largest = values.nan_to_num(0.0).abs().max(dim=1).values
    return spread_within(values) > ROUNDING * largest


def spread_within(values: Tensor) -> Tensor:
    """Return (groups,) max minus min of (groups, rows), ignoring NaN; 0 for a group without values."""
    is_known = ~values.isnan()
    high = values.masked_fill(~is_known, -torch.inf).max(dim=1).values
    low = values.masked_fill(~is_known, torch.inf).min(dim=1).values
    return torch.where(is_known.any(dim=1), high - low, 0.0)


def table_columns(
    settled: Settled, components: Sequence[Component], outcomes: Sequence[RewardOutcome], rows: slice
) -> dict[str, list[object]]:
    """Return this rank's columns of the completions table, the same for every batch: TRL needs equally long ones."""
    columns: dict[str, list[object]] = {"total": list(map(finite_or_none, settled.row_totals[rows].tolist()))}
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
    """Return columns of the completions table for this rank's `rows`. `number`: of the round, None in an evaluation."""
    cut, lengths = endings.is_truncated[rows].tolist(), endings.lengths[rows].tolist()
    columns: dict[str, list[object]] = {ROUND: [number] * len(cut), STEP: [step] * len(cut)}
    columns |= {TRUNCATED: cut, TOKENS: lengths}
    if endings.kinds is not None:
        columns[ENDING] = [str(ENDINGS[kind]) for kind in endings.kinds[rows].tolist()]
    return columns


@dataclass(frozen=True)
class DeadRound:
    """A round in which every advantage was 0: why, a line per component, and whether the length limit is to blame."""

    step: int
    cause: str = ""  # of these two, an earlier version stored neither
    lines: list[str] = field(default_factory=list)
    is_cut_off: bool = False


def explain_dead_round(
    step: int,
    settled: Settled,
    components: Sequence[Component],
    counts: Tensor,
    group_size: int,
    *,
    left_out: float = 0.0,
    valued: float = 0.0,
) -> DeadRound:
    """Return why a round gave no signal. Truncation excluded the share `left_out`, the critic `valued` a share.

    A round is dead if all totals within each group are equal: each total equals its baseline, and every advantage is 0
    (arXiv 2402.03300, 4.1.2, with r_i = mean(r)). Differences of rounding do not count. counts: of `outcome_counts`.
    """
    weighted = settled.contributions.double()
    sizes = dict(zip(settled.names, weighted.nan_to_num(0.0).abs().amax(dim=0).tolist(), strict=True))
    spreads, lines = dict[str, float](), list[str]()
    for index, name in enumerate(settled.names):
        spread = spread_within(weighted[:, index].unflatten(0, (-1, group_size))).max().item()
        spreads[name] = spread if spread > ROUNDING * sizes[name] else 0.0
        lines.append(f"{name}: {_describe(settled, index, components, counts, spreads[name])}")
    varying, largest = [name for name in spreads if spreads[name]], max(sizes, key=sizes.__getitem__)
    if left_out == 1.0:
        return DeadRound(step, "every completion was truncated, and the policy excludes such rows", lines, True)
    if valued == 1.0 or (valued > 0.5 and not varying):
        share = "every completion was" if valued == 1.0 else "most completions were"
        return DeadRound(step, f"{share} truncated, and the critic's value replaces the score", lines, True)
    if not varying:
        return DeadRound(step, "no reward differed between the completions of a prompt", lines)
    if sizes[largest] * ROUNDING >= max(spreads.values()):
        return DeadRound(step, f"the weight of {largest} drowns {' and '.join(varying)}", lines)
    return DeadRound(step, f"{' and '.join(varying)} differed, but the totals did not: see the aggregate", lines)


def _describe(settled: Settled, index: int, components: Sequence[Component], counts: Tensor, spread: float) -> str:
    """Return one line on what a component did in a round; an environment's own reward has no gates and no counts."""
    raw = settled.raw[:, index]
    raw = raw[~raw.isnan()]
    opened, _, errors = counts[index, :3].tolist() if index < len(counts) else (1.0, 0.0, 0.0)
    if opened == 0.0:
        return f"closed for every row by its gate on {' or '.join(gate.by for gate in components[index].gates)}"
    if not raw.numel():
        return f"no score: {f'{errors:.0f} rows failed' if errors else 'it returned None for every row'}"
    low, high = raw.min().item(), raw.max().item()
    values = f"{low:g} on every row" if low == high else f"from {low:g} to {high:g}"
    weight = f"{values}, weight {settled.weights[index].item():g}"
    return weight + (f": differs by up to {spread:g} in a group" if spread else "")
