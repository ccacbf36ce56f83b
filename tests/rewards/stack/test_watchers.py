"""A reward of weight 0 only watches: every number that training takes from a batch is the same with and without it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rlhf_cli.algorithms.rloo import Rloo
from rlhf_cli.rewards.stack.aggregating import Schedule, counting
from rlhf_cli.rewards.stack.component import Component
from rlhf_cli.rewards.stack.reward_matrix import Fill, Settled, SettleRules, add_truncation, settle, token_rewards
from rlhf_cli.rewards.stack.reward_metrics import component_metrics
from rlhf_cli.truncation import Endings, EosPenalty, Exclude, SoftOverlong, TruncationPolicy
from tests.support.tolerances import EXACT, distance

NAN = float("nan")
A = [1.0, NAN, 3.0, NAN, 0.5, 2.5, NAN, 7.0]
B = [0.5, NAN, NAN, 1.0, NAN, -2.0, NAN, 1.0]
"""Two groups of four; neither applies to the rows 1 and 6."""
WATCHED = [9.0, 9.0, -9.0, NAN, 4.0, NAN, 2.0, 1.0]
IS_CUT = torch.tensor([False, True, False, True, False, False, True, True])
POLICIES = [TruncationPolicy(), EosPenalty(0.75), EosPenalty(0.75, "replace"), Exclude(), SoftOverlong(2.0, cache=3)]


def rule(name: str, weight: Any, **rules: Any) -> Component:
    return Component(name, lambda **_: [], weight, **rules)


def settled(watcher: Component | None, policy: TruncationPolicy, aggregate: Any, fill: Fill) -> Settled:
    rules = [rule("a", 1.0), rule("b", -0.5), *([] if watcher is None else [watcher])]
    raw = torch.tensor([A, B, WATCHED][: len(rules)], dtype=torch.float64).T.contiguous()
    endings = Endings(IS_CUT, torch.tensor([2, 4, 3, 4, 1, 2, 4, 4]), 4)
    made, _ = settle(
        raw,
        torch.full_like(raw, NAN),
        torch.tensor([1.0, -0.5, 0.0 if watcher is None else _first(watcher)][: len(rules)], dtype=torch.float64),
        SettleRules(rules, aggregate, 4, policy, fill),
        {},
        endings=endings,
    )
    return add_truncation(made, policy, endings)


def _first(watcher: Component) -> float:
    return watcher.weight.start if isinstance(watcher.weight, Schedule) else watcher.weight


def total_of_given(rewards: dict[str, list[float | None]], weights: dict[str, float]) -> list[float]:
    rows = zip(*([(value or 0.0) * weights[name] for value in rewards[name]] for name in rewards), strict=True)
    return [sum(row) + 0.25 for row in rows]


AGGREGATES = ["sum", "normalize_then_sum", total_of_given]


def same(first: Tensor, second: Tensor) -> bool:
    is_same_gap = torch.equal(first.isnan(), second.isnan())
    return is_same_gap and distance(first.nan_to_num(), second.nan_to_num()) <= EXACT


@pytest.mark.parametrize("policy", POLICIES, ids=lambda one: f"{one.name}{'_replaces' * one.replaces}")
@pytest.mark.parametrize("aggregate", AGGREGATES, ids=["sum", "z", "own"])
@pytest.mark.parametrize("weight", [0.0, Schedule(0.0, 0.0, steps=3)], ids=["0", "0 to 0"])
class TestBatch:
    @pytest.mark.parametrize("fill", ["group", "zero"])
    def test_totals_are_the_same(self, policy: TruncationPolicy, aggregate: Any, weight: Any, fill: Fill) -> None:
        alone = settled(None, policy, aggregate, fill)
        watched = settled(rule("w", weight), policy, aggregate, fill)
        assert same(watched.totals, alone.totals)
        assert same(watched.row_totals, alone.row_totals)
        assert watched.is_unscorable.equal(alone.is_unscorable)
        own = [place for place, name in enumerate(watched.names) if name != "w"]
        assert same(watched.effective[:, own], alone.effective)
        counts = torch.zeros(len(watched.names), 7)
        logged, expected = component_metrics(watched, counts), component_metrics(alone, counts)
        for name in expected:
            assert logged[name] == pytest.approx(expected[name], rel=1e-12, nan_ok=True), name

    def test_a_gap_of_it_changes_no_baseline_of_rloo(
        self, policy: TruncationPolicy, aggregate: Any, weight: Any
    ) -> None:
        for clip in (None, (-1.0, 1.5)):
            both = (settled(one, policy, aggregate, "zero") for one in (rule("w", weight), None))
            watched, alone = (Rloo(clip_range=clip).given(one, aggregate, 4) for one in both)
            assert same(watched.totals.nan_to_num(0.0), alone.totals.nan_to_num(0.0))
            assert watched.totals.isnan().equal(alone.totals.isnan())


def test_negative_control_a_weighted_reward_changes_the_totals() -> None:
    """The comparison above can fail: a weight that is not 0, and a ramp that leaves 0, bring the rows back."""
    alone = settled(None, TruncationPolicy(), "sum", "group")
    for weight in (0.1, Schedule(0.0, 1.0, steps=3), Schedule(1.0, 0.0, fraction=0.5)):
        other = settled(rule("w", weight), TruncationPolicy(), "sum", "group")
        assert alone.is_unscorable.tolist() == [row in (1, 6) for row in range(8)]
        assert not other.is_unscorable.any()
        assert not same(other.totals, alone.totals)


def test_names_that_count() -> None:
    watcher, ramp = rule("w", 0.0), rule("r", Schedule(0.0, 1.0, steps=1))
    assert counting({"a": rule("a", -1.0), "w": watcher, "r": ramp}) == ["a", "r"]
    assert counting({"w": watcher}) == ["w"]  # no reward has a weight: every total is 0
    assert counting({"w": watcher}, ["env"]) == ["env"]


def test_tokens_of_a_watcher_are_not_rewarded() -> None:
    """Process supervision takes its mean over the rewarded tokens: a token worth 0 times 5 would be one of them."""

    def laid_out(weight: Any) -> tuple[Tensor, Tensor]:
        made = settled(rule("w", weight), TruncationPolicy(), "sum", "zero")
        dense = lambda name, row, divisor: [5.0] * 4 if name == "w" else None  # noqa: E731
        return token_rewards(dense, made, torch.ones(8, 4, dtype=torch.bool), slice(0, 8))

    values, is_rewarded = laid_out(0.0)
    assert is_rewarded.sum(dim=1).tolist() == [0 if row in (1, 6) else 1 for row in range(8)]
    assert values[2].abs().sum() == 0
    assert laid_out(Schedule(0.0, 1.0, steps=1))[1].sum() > is_rewarded.sum()
