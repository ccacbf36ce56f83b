"""Logged metrics of every reward, by hand on four rows, and the notice about rounds without a learning signal."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from rlhf_cli.rewards.stack import reward_metrics
from rlhf_cli.rewards.stack.component import Component, RewardOutcome, ScoreGate
from rlhf_cli.rewards.stack.reward_metrics import (
    ComponentStatistics,
    DeadRound,
    component_metrics,
    component_statistics,
    explain_dead_rounds,
    outcome_counts,
    share_of_dead_groups,
    table_columns,
)
from tests.support.settled_columns import NAN, Case, Rule, column

A, B, C = column(1, 3, NAN, NAN), column(2, 5, 2, NAN), column(1, 1, 1, NAN)
"""The last row is unscorable."""


def metrics_of(*columns: torch.Tensor, weights: list[float], counts: torch.Tensor | None = None) -> dict[str, float]:
    settled = Case(list(columns), [Rule(name) for name in "abc"[: len(columns)]], weights).settle()
    return component_metrics(settled, torch.zeros(0, 7) if counts is None else counts)


class TestScores:
    def test_by_hand(self) -> None:
        """a = 1, 3: mean 2, squares 2, over n - 1 = 1; its row without a score gets 2, so the three scorable ones have
        2 on average. b = 2, 5, 2: mean 3, squares 6, over 2.
        """
        found = metrics_of(A, B, C, weights=[0.5, -1.0, 2.0])
        expected = {
            "a": {"mean": 2.0, "std": 2**0.5, "effective_mean": 2.0, "weighted_mean": 1.0, "weight": 0.5},
            "b": {"mean": 3.0, "std": 3**0.5, "effective_mean": 3.0, "weighted_mean": -3.0, "weight": -1.0},
            "c": {"mean": 1.0, "std": 0.0, "effective_mean": 1.0, "weighted_mean": 2.0, "weight": 2.0},
        }
        for name, figures in expected.items():
            for figure, value in figures.items():
                assert found[f"rewards/{name}/{figure}"] == pytest.approx(value), (name, figure)
        assert "reward" not in found  # TRL's own, where the totals are in reward units

    def test_one_score_has_no_deviation_and_none_no_mean(self) -> None:
        found = metrics_of(column(4, NAN, NAN, NAN), column(NAN, NAN, NAN, NAN), weights=[1.0, 1.0])
        assert found["rewards/a/mean"] == 4.0
        assert found["rewards/a/effective_mean"] == 4.0
        assert found["rewards/b/mean"] != found["rewards/b/mean"]
        assert all(found[f"rewards/{name}/std"] != found[f"rewards/{name}/std"] for name in "ab")
        for first in (column(4, NAN, NAN, NAN), column(4, 4, NAN, NAN), column(NAN, NAN, 1, 2)):
            found = metrics_of(first, column(5, 6, NAN, NAN), weights=[1, 1])
            assert not any("correlation" in name for name in found)

    def test_z_scored_totals_are_logged_in_reward_units(self) -> None:
        """a + 2 b over the scorable rows, a's missing score at a's mean in the group: 5, 13 and 2 + 4."""
        case = Case([A, B], [Rule("a"), Rule("b")], [1.0, 2.0], aggregate="normalize_then_sum")
        found = component_metrics(case.settle(), torch.zeros(0, 7))
        assert found["reward"] == pytest.approx((5 + 13 + 6) / 3)
        assert found["reward_std"] == pytest.approx(((9 + 25 + 4) / 2) ** 0.5)
        case.raw = [column(1, 3, NAN, NAN)] * 2
        assert component_metrics(case.settle(), torch.zeros(0, 7))["reward_std"] == pytest.approx(3 * 2**0.5)


class TestCorrelations:
    def test_by_hand(self) -> None:
        """1, 2, 3, 6 around 3 and 4, 1, 0, 3 around 2: products -4 + 1 + 0 + 3 = 0; with a last 7 instead of 3, around
        3: products -2 + 2 + 0 + 12 = 12, squares 14 and 30.
        """
        a = column(0.01, 0.02, 0.03, 0.06)  # little variance is variance
        assert metrics_of(a, column(4, 1, 0, 3), weights=[1, 1])["rewards/correlation/a/b"] == pytest.approx(
            0, abs=1e-12
        )
        found = metrics_of(a, column(4, 1, 0, 7), weights=[1, 1])["rewards/correlation/a/b"]
        assert found == pytest.approx(12 / (14 * 30) ** 0.5)
        two_rows = metrics_of(column(4, 5, NAN, NAN), column(6, 5, NAN, NAN), weights=[1, 1])
        assert two_rows["rewards/correlation/a/b"] == pytest.approx(-1)

    def test_each_pair_is_logged_once(self) -> None:
        rising, level = [column(1, 2, 3, 4), column(4, 1, 0, 3), column(2, 2, 1, 5)], column(1, 1, 1, 1)
        for third, pairs in ((rising[2], ("a/b", "a/c", "b/c")), (level, ("a/b",))):
            found = {name for name in metrics_of(*rising[:2], third, weights=[1, 1, 1]) if "/correlation/" in name}
            assert found == {f"rewards/correlation/{pair}" for pair in pairs}


class TestCounts:
    def test_two_processes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        outcome = RewardOutcome.empty(4)
        outcome.closed_by[1] = "gate"
        outcome.fixed[1] = 0.0
        outcome.errors[2] = "ValueError: odd"
        outcome.timeouts, outcome.calls, outcome.calls_saved, outcome.seconds = 5, 6, 7, 8.0
        monkeypatch.setattr(reward_metrics, "gather_object", lambda of_rank: of_rank * 2)
        counts = outcome_counts([outcome], SimpleNamespace(num_processes=2))
        # Open, excluded, errors, timeouts, calls, saved are sums over ranks; the seconds are the ranks' mean.
        assert counts.tolist() == [[6.0, 6.0, 2.0, 10.0, 12.0, 14.0, 8.0]]
        found = metrics_of(column(1, 2, 3, 4), weights=[1.0], counts=torch.tensor([[3.0, 1, 2, 5, 6, 7, 8]]))
        names = ("open_fraction", "excluded", "errors", "timeouts", "calls", "calls_saved", "seconds")
        assert [found[f"rewards/a/{name}"] for name in names] == [0.75, 1, 2, 5, 6, 7, 8]


def test_columns_of_the_table_are_those_of_this_rank() -> None:
    """Eight rows on two ranks; this is the second rank, and the gate and failures are of its four rows."""
    ranks = [column(0, 0, 0, 0, 1, 2, 3, 4), column(1, 1, 1, 1, 5, 6, 7, 8), column(*[0] * 8)]
    settled = Case(ranks, [Rule("a"), Rule("b"), Rule("its own")], [1.0, -2.0, 1.0]).settle()
    gated, plain = RewardOutcome.empty(4), RewardOutcome.empty(4)
    gated.closed_by[3] = "a"
    gated.errors[0] = "ValueError: odd"
    components = [Component("a", len), Component("b", len, gates=(ScoreGate("a"),), on_error="exclude")]
    found = table_columns(settled, components, [plain, gated], slice(4, 8))
    assert found == {
        "total": [-9.0, -10.0, -11.0, -12.0],
        "a.effective": [1.0, 2.0, 3.0, 4.0],
        "a.weighted": [1.0, 2.0, 3.0, 4.0],
        "b.effective": [5.0, 6.0, 7.0, 8.0],
        "b.weighted": [-10.0, -12.0, -14.0, -16.0],
        "b.closed_by": [None, None, None, "a"],
        "b.error": ["ValueError: odd", None, None, None],
        **{"its own.effective": [0.0] * 4, "its own.weighted": [0.0] * 4},  # an environment's
    }


CONSTANT = ComponentStatistics("a", (), 1.0, 2.0, 2.0, 1.0, 0, 2.0, 0.0)
"""A reward of 2 on every row."""
SMALL = replace(CONSTANT, name="small", low=0.0, high=1.0, size=1.0, spread=1.0)
BIG = replace(CONSTANT, name="big", weight=1e9, size=2e9)


def rounds(*components: ComponentStatistics, valued: tuple[float, float] = (0.0, 0.0)) -> list[DeadRound]:
    return [DeadRound(step, components, 0.0, value) for step, value in zip((3, 4), valued, strict=True)]


def second_differs(**other: float) -> list[DeadRound]:
    return [DeadRound(3, (CONSTANT,), 0.0), DeadRound(4, (replace(CONSTANT, **other),), 0.0)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("totals", "expected"),
    [
        ((1, 1, 1, 1), 1.0),
        ((1, 1, 5, 5), 1.0),  # each row is compared with the other row of its prompt
        ((1, 1, 5, 5.001), 0.5),
        ((1, 2, 5, 5.001), 0.0),
        ((0, 0, 0, 0), 1.0),
        ((0, 0, 0, 1e-30), 0.5),
        ((NAN, NAN, NAN, NAN), 1.0),
        ((NAN, 1, 2, 2), 1.0),  # the only score of its group is its own baseline
        ((NAN, 1, 2, 3), 0.5),
    ],
)
def test_groups_are_dead_whose_totals_are_equal(totals: tuple[float, ...], expected: float) -> None:
    settled = Case([column(*totals)], [Rule("a")], [1.0]).settle()
    assert share_of_dead_groups(settled.totals, 2) == expected


def test_totals_within_four_units_of_rounding_are_equal() -> None:
    """Near 1000, float32 numbers are 2^-14 = 6.1e-5 apart, and 4 eps of 1000 are 4.8e-4."""
    for apart, expected in ((6.1e-5, True), (4.7e-4, True), (6e-4, False)):
        settled = Case([column(1000, 1000 + apart, NAN)], [Rule("a")], [1.0], num_generations=3).settle()
        assert (share_of_dead_groups(settled.totals, 3) == 1.0) is expected


def test_statistics_of_two_components() -> None:
    """a: raw -1 to 3; with weight 2 its groups differ by (3 - -1) * 2 = 8 and by 0. b: no score, 1 of 4 rows open."""
    rules = [Rule("a"), Rule("b", gates=(ScoreGate(by="a", low=2.0),))]
    settled = Case([column(-1, 3, 1, 1), column(NAN, NAN, NAN, NAN)], rules, [2.0, 1.0], num_generations=2).settle()
    first, second = component_statistics(settled, rules, [(4, 0), (1, 1)], 2)  # type: ignore[arg-type]
    assert first == ComponentStatistics("a", (), 2.0, -1.0, 3.0, 1.0, 0, 6.0, 8.0)
    assert second == ComponentStatistics("b", ("a",), 1.0, None, None, 0.25, 1, 0.0, 0.0)


def test_an_environments_reward_has_no_gates_and_no_counts() -> None:
    rules = [Rule("a"), Rule("its own")]
    settled = Case([column(1, 1), column(2, 2)], rules, [1.0, 1.0], num_generations=2).settle()
    _, own = component_statistics(settled, rules[:1], [(2, 0)], 2)  # type: ignore[arg-type]
    assert (own.gated_by, own.open_fraction, own.errors) == ((), None, 0)


class TestCause:
    """Which cause is named; the words of each are the feature here."""

    @pytest.mark.parametrize(
        ("dead", "cause", "is_cut_off"),
        [
            pytest.param(rounds(CONSTANT), "no reward differed", False, marks=pytest.mark.fault(33)),
            ([DeadRound(3, (CONSTANT,), 1.0)], "every completion was truncated, and the policy excludes", True),
            ([DeadRound(3, (CONSTANT,), 1.0), DeadRound(4, (CONSTANT,), 0.9)], "no reward differed", False),
            (rounds(CONSTANT, valued=(1.0, 1.0)), "every completion was truncated, and the critic", True),
            (rounds(CONSTANT, valued=(1.0, 0.6)), "most completions were truncated", True),
            (rounds(CONSTANT, valued=(0.9, 0.5)), "no reward differed", False),
            (rounds(SMALL, BIG), "the weight of big drowns small", False),
            (rounds(SMALL, BIG, valued=(0.97, 0.97)), "the weight of big drowns small", False),
            (rounds(SMALL, BIG, valued=(1.0, 1.0)), "every completion was truncated, and the critic", True),
            ([*rounds(SMALL, BIG), *rounds(SMALL, replace(BIG, size=1.0))], *("the weight of big drowns small", False)),
            (rounds(SMALL, replace(BIG, size=1.0)), "small differed, but the totals did not", False),
        ],
    )
    def test_cause(self, dead: list[DeadRound], cause: str, is_cut_off: bool) -> None:
        explained = explain_dead_rounds(dead)
        assert explained.cause.startswith(cause)
        assert explained.is_cut_off is is_cut_off

    @pytest.mark.parametrize(
        ("spreads", "is_drowned"),
        [((1.0, 0.5), True), ((0.5, 1.0), True), ((1.0, 1.001), False), ((1.001, 0.5), False)],
    )
    def test_a_reward_is_drowned_below_the_rounding_of_the_largest(
        self, spreads: tuple[float, float], is_drowned: bool
    ) -> None:
        """4 units in the last place of 2^21 in float32 are 4 x 2^-23 x 2^21 = 1. All that varies must be below."""
        first, second = (replace(SMALL, name=name, spread=spread) for name, spread in zip("xy", spreads, strict=True))
        cause = explain_dead_rounds(rounds(first, replace(CONSTANT, name="big", size=2.0**21), second)).cause
        assert ("big drowns x and y" in cause) is is_drowned


class TestLines:
    @pytest.mark.fault(33)
    @pytest.mark.parametrize(
        ("changes", "line"),
        [
            ({}, "2 on every row, weight 1"),
            ({"low": None, "high": None}, "no score: it returned None for every row"),
            ({"low": None, "high": None, "errors": 3}, "no score: 6 rows failed"),
            ({"gated_by": ("b",), "open_fraction": 0.0}, "closed for every row by its gate on b"),
            ({"low": 0.0, "high": 1.0, "spread": 1.0}, "from 0 to 1, weight 1: differs by up to 1 in a group"),
        ],
    )
    def test_one_component(self, changes: dict[str, float], line: str) -> None:
        assert explain_dead_rounds(rounds(replace(CONSTANT, **changes))).lines == [f"a: {line}"]  # type: ignore[arg-type]

    def test_a_line_covers_all_rounds(self) -> None:
        for other, values in (
            ({"low": 0.0}, "from 0 to 2, weight 1"),
            ({"high": 5.0}, "from 2 to 5, weight 1"),
            ({"spread": 1.0}, "2 on every row, weight 1: differs by up to 1 in a group"),
            ({"weight": 0.5}, "2 on every row, weight 0.5"),
            ({"open_fraction": 0.0}, "2 on every row, weight 1"),
        ):
            assert explain_dead_rounds(second_differs(**other)).lines == [f"a: {values}"]

    def test_rounding_within_a_group_is_not_a_difference(self) -> None:
        wide = replace(CONSTANT, size=2.0**21, spread=1.0)
        for one in (wide, replace(wide, size=1.0)):
            assert explain_dead_rounds([*rounds(wide), *rounds(one)]).lines == ["a: 2 on every row, weight 1"]
        assert "differs" in explain_dead_rounds(rounds(replace(wide, spread=1.001))).lines[0]
