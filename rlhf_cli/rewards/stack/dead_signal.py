"""Explain why several rounds gave no learning signal; reward_metrics.py detects such a round.

A round is dead if all totals within each group are equal: each total equals its baseline, and every advantage is 0
(arXiv 2402.03300, 4.1.2, with r_i = mean(r)). Rounding differences of float32 do not count. A mean of equal numbers is
off by some units in the last place, and dividing by a deviation near 0 would turn that into a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_cli.rewards.stack.component import Component
from rlhf_cli.rewards.stack.reward_matrix import Settled
from rlhf_cli.rewards.stack.reward_metrics import ROUNDING, spread_within


@dataclass(frozen=True)
class ComponentStatistics:
    """One component's statistics in a round. `gated_by` names the rewards its gates read.

    `low`, `high`: range of the raw scores, None if there were none. `open_fraction`: share of rows that no gate closed,
    None for an environment's own reward. `size`: largest magnitude of weight times effective value. `spread`: largest
    difference that it makes between rows of a group.
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
    """A round in which every advantage was 0.

    `left_out`: share of rows excluded by truncation. `valued`: share whose score a critic's value replaced.
    """

    step: int
    components: tuple[ComponentStatistics, ...]
    left_out: float
    valued: float = 0.0


def component_statistics(
    settled: Settled, components: Sequence[Component], counts: Sequence[Sequence[float]], group_size: int
) -> tuple[ComponentStatistics, ...]:
    """Return each component's statistics. counts: per component (rows no gate closed, failed rows) over all ranks.

    The last columns of `settled` may be environments' own rewards, which have neither counts nor gates.
    """
    found = []
    num_rows = settled.raw.shape[0]
    for index, name in enumerate(settled.names):
        raw = settled.raw[:, index]
        raw = raw[~raw.isnan()]
        weighted = settled.contributions[:, index].double()
        opened, errors = counts[index] if index < len(counts) else (None, 0)
        found.append(
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
    return tuple(found)


@dataclass(frozen=True)
class NoSignal:
    """Why several rounds gave no signal, in a few words, and one line per component.

    `is_cut_off`: the length limit is to blame, not a reward.
    """

    cause: str
    lines: list[str]
    is_cut_off: bool = False


def explain_dead_rounds(rounds: Sequence[DeadRound]) -> NoSignal:
    """Return why these rounds gave no signal."""
    by_component = {seen[0].name: seen for seen in zip(*(dead.components for dead in rounds), strict=True)}
    described = {name: _describe(seen) for name, seen in by_component.items()}
    names_of: dict[str, list[str]] = {"gated": [], "nothing": [], "constant": [], "varying": [], "unweighted": []}
    for name, (kind, _) in described.items():
        names_of[kind].append(name)
    lines = [f"{name}: {line}" for name, (_, line) in described.items()]
    if all(dead.left_out == 1.0 for dead in rounds):
        cause = "every completion was cut off, and truncation leaves such rows out"
        return NoSignal(cause, lines, is_cut_off=True)
    if all(dead.valued == 1.0 for dead in rounds):
        cause = "every completion was cut off, and in place of its score it has the critic's value, always the same"
        return NoSignal(cause, lines, is_cut_off=True)
    is_watched = {name: all(one.weight == 0.0 for one in seen) for name, seen in by_component.items()}
    if names_of["nothing"] and all(kind == "nothing" or is_watched[name] for name, (kind, _) in described.items()):
        return NoSignal("no reward applied to any row", lines)
    if names_of["gated"] and not names_of["varying"] and not names_of["unweighted"]:
        cause = f"every row was gated out of {' and '.join(names_of['gated'])}, and nothing else told rows apart"
        return NoSignal(cause, lines)
    if varying := names_of["varying"]:
        sizes = {name: max(one.size for one in seen) for name, seen in by_component.items()}
        largest = max(sizes, key=sizes.__getitem__)
        if sizes[largest] * ROUNDING >= max(one.spread for name in varying for one in by_component[name]):
            return NoSignal(f"the weight of {largest} drowns {' and '.join(varying)}", lines)
        return NoSignal(f"{' and '.join(varying)} told rows apart and the total did not: see the aggregate", lines)
    if all(dead.valued > 0.5 for dead in rounds):
        cause = "most completions were cut off, and in place of their scores they have the critic's value"
        return NoSignal(cause, lines, is_cut_off=True)
    if names_of["unweighted"]:
        return NoSignal(f"what {' and '.join(names_of['unweighted'])} told apart did not reach the total", lines)
    return NoSignal("every reward was constant within its groups", lines)


def _describe(rounds: Sequence[ComponentStatistics]) -> tuple[str, str]:
    """Return (kind, line): what one component did over several rounds, as a key of `names_of` and in words."""
    lows = [one.low for one in rounds if one.low is not None]
    highs = [one.high for one in rounds if one.high is not None]
    size, spread = max(one.size for one in rounds), max(one.spread for one in rounds)
    weight = rounds[-1].weight
    if all(one.open_fraction == 0.0 for one in rounds):
        return "gated", f"closed for every row by its gate on {' or '.join(rounds[-1].gated_by)}"
    if not lows:
        errors = sum(one.errors for one in rounds)
        return "nothing", f"no score: {f'{errors} rows failed' if errors else 'it returned None for every row'}"
    is_constant = min(lows) == max(highs)
    between = f"{lows[0]:g} on every row" if is_constant else f"from {min(lows):g} to {max(highs):g}"
    if spread > ROUNDING * size:
        return "varying", f"{between}, weight {weight:g}: up to {spread:g} apart in a group"
    if is_constant:
        return "constant", f"{between}, weight {weight:g}"
    if weight == 0.0:
        return "unweighted", f"{between}, but its weight is 0"
    return "constant", f"{between}, weight {weight:g}: the same for all rows of a group, after offset, clip and gate"
