"""Log every reward: raw and effective means, gates, failures, calls; explain rounds without a learning signal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
        metrics[f"{prefix}/std"] = deviation(raw)
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
        metrics["reward_std"] = deviation(total)
    return metrics | _correlations(settled)


def deviation(values: Tensor) -> float:
    """Return the unbiased deviation of (N,) values, NaN for fewer than two: torch would warn."""
    return values.std().item() if values.numel() > 1 else torch.nan


def _correlations(settled: Settled) -> dict[str, float]:
    """Return Pearson's correlation of each pair of components' raw scores, over the rows where both apply."""
    metrics: dict[str, float] = {}
    for (first, one), (second, other) in combinations(enumerate(settled.names[:_MAX_CORRELATED]), 2):
        pair = settled.raw[:, [first, second]]
        pair = pair[~pair.isnan().any(dim=1)].double()
        if bool((pair != pair[:1]).any(dim=0).all()):
            metrics[f"rewards/correlation/{one}/{other}"] = torch.corrcoef(pair.T)[0, 1].item()
    return metrics


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
    """Return columns of the completions table for this rank's `rows`. `number`: of the round, None in an evaluation."""
    cut, lengths = endings.is_truncated[rows].tolist(), endings.lengths[rows].tolist()
    columns: dict[str, list[object]] = {ROUND: [number] * len(cut), STEP: [step] * len(cut)}
    columns |= {TRUNCATED: cut, TOKENS: lengths}
    if endings.kinds is not None:
        columns[ENDING] = [str(ENDINGS[kind]) for kind in endings.kinds[rows].tolist()]
    return columns


@dataclass(frozen=True)
class ComponentStatistics:
    """One component's statistics in a round: `low` and `high` of the raw scores, None if there were none.

    `open_fraction`: share of rows that no gate closed, None for an environment's own reward. `size`: largest magnitude
    of weight times effective value. `spread`: largest difference that it makes between rows of a group.
    """

    name: str
    gated_by: tuple[str, ...]
    weight: float
    low: float | None
    high: float | None
    open_fraction: float | None
    errors: int
    size: float
    spread: float


@dataclass(frozen=True)
class DeadRound:
    """A round in which every advantage was 0. Truncation excluded the share `left_out`, the critic `valued` a share."""

    step: int
    components: tuple[ComponentStatistics, ...]
    left_out: float
    valued: float = 0.0


def component_statistics(
    settled: Settled, components: Sequence[Component], counts: Sequence[Sequence[float]], group_size: int
) -> tuple[ComponentStatistics, ...]:
    """Return each component's statistics. counts: (rows no gate closed, failed rows), not for environments' rewards."""
    statistics = []
    num_rows = settled.raw.shape[0]
    for index, name in enumerate(settled.names):
        raw = settled.raw[:, index]
        raw = raw[~raw.isnan()]
        weighted = settled.contributions[:, index].double()
        opened, errors = counts[index] if index < len(counts) else (None, 0)
        statistics.append(
            ComponentStatistics(
                name=name,
                gated_by=tuple(gate.by for gate in components[index].gates) if index < len(components) else (),
                weight=settled.weights[index].item(),
                low=raw.min().item() if raw.numel() else None,
                high=raw.max().item() if raw.numel() else None,
                open_fraction=None if opened is None else opened / num_rows,
                errors=int(errors),
                size=weighted.nan_to_num(0.0).abs().max().item(),
                spread=spread_within(weighted.unflatten(0, (-1, group_size))).max().item(),
            )
        )
    return tuple(statistics)


@dataclass(frozen=True)
class NoSignal:
    """Why several rounds gave no signal, a line per component, and whether the length limit is to blame."""

    cause: str
    lines: list[str]
    is_cut_off: bool = False


def explain_dead_rounds(rounds: Sequence[DeadRound]) -> NoSignal:
    """Return why these rounds gave no signal.

    A round is dead if all totals within each group are equal: each total equals its baseline, and every advantage is 0
    (arXiv 2402.03300, 4.1.2, with r_i = mean(r)). Differences of rounding do not count.
    """
    by_component = {seen[0].name: seen for seen in zip(*(dead.components for dead in rounds), strict=True)}
    lines = [f"{name}: {_describe(seen)}" for name, seen in by_component.items()]
    if all(dead.left_out == 1.0 for dead in rounds):
        return NoSignal("every completion was truncated, and the policy excludes such rows", lines, is_cut_off=True)
    spreads = {name: _spread(seen) for name, seen in by_component.items()}
    varying = [name for name, spread in spreads.items() if spread]
    least_valued = min(dead.valued for dead in rounds)
    if least_valued == 1.0 or (least_valued > 0.5 and not varying):
        share = "every completion was" if least_valued == 1.0 else "most completions were"
        return NoSignal(f"{share} truncated, and the critic's value replaces the score", lines, is_cut_off=True)
    if not varying:
        return NoSignal("no reward differed between the completions of a prompt", lines)
    sizes = {name: max(statistics.size for statistics in seen) for name, seen in by_component.items()}
    largest = max(sizes, key=sizes.__getitem__)
    if sizes[largest] * ROUNDING >= max(spreads.values()):
        return NoSignal(f"the weight of {largest} drowns {' and '.join(varying)}", lines)
    return NoSignal(f"{' and '.join(varying)} differed, but the totals did not: see the aggregate", lines)


def _spread(rounds: Sequence[ComponentStatistics]) -> float:
    """Return the largest difference that a component makes within a group; 0 if it is only rounding."""
    size, spread = max(statistics.size for statistics in rounds), max(statistics.spread for statistics in rounds)
    return spread if spread > ROUNDING * size else 0.0


def _describe(rounds: Sequence[ComponentStatistics]) -> str:
    """Return one line on what a component did over several rounds."""
    lows = [statistics.low for statistics in rounds if statistics.low is not None]
    highs = [statistics.high for statistics in rounds if statistics.high is not None]
    if all(statistics.open_fraction == 0.0 for statistics in rounds):
        return f"closed for every row by its gate on {' or '.join(rounds[-1].gated_by)}"
    if not lows:
        errors = sum(statistics.errors for statistics in rounds)
        return f"no score: {f'{errors} rows failed' if errors else 'it returned None for every row'}"
    values = f"{lows[0]:g} on every row" if min(lows) == max(highs) else f"from {min(lows):g} to {max(highs):g}"
    spread = _spread(rounds)
    return f"{values}, weight {rounds[-1].weight:g}" + (f": differs by up to {spread:g} in a group" if spread else "")
