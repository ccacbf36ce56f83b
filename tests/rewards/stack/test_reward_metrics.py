"""Logged metrics of every reward, by hand on four rows, and the notice about rounds without a learning signal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlhf_cli.rewards.stack import reward_metrics
from rlhf_cli.rewards.stack.component import Component, RewardOutcome, ScoreGate
from rlhf_cli.rewards.stack.reward_metrics import (
    DeadRound,
    component_metrics,
    explain_dead_round,
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
        figures = ("mean", "std", "effective_mean", "weighted_mean", "weight")
        expected = {"a": (2, 2**0.5, 2, 1, 0.5), "b": (3, 3**0.5, 3, -3, -1), "c": (1, 0, 1, 2, 2)}
        for name, values in expected.items():
            assert [found[f"rewards/{name}/{figure}"] for figure in figures] == pytest.approx(values)
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
        for first, second, expected in (
            (a, column(4, 1, 0, 3), 0.0),
            (a, column(4, 1, 0, 7), 12 / (14 * 30) ** 0.5),
            (column(4, 5, NAN, NAN), column(6, 5, NAN, NAN), -1.0),
        ):
            found = metrics_of(first, second, weights=[1, 1])["rewards/correlation/a/b"]
            assert found == pytest.approx(expected, abs=1e-12)

    def test_each_pair_is_logged_once(self) -> None:
        rising, level = [column(1, 2, 3, 4), column(4, 1, 0, 3), column(2, 2, 1, 5)], column(1, 1, 1, 1)
        for third, pairs in ((rising[2], ("a/b", "a/c", "b/c")), (level, ("a/b",))):
            found = {name for name in metrics_of(*rising[:2], third, weights=[1, 1, 1]) if "/correlation/" in name}
            assert found == {f"rewards/correlation/{pair}" for pair in pairs}


def test_counts_of_two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = RewardOutcome.empty(4)
    outcome.closed_by[1], outcome.fixed[1], outcome.errors[2] = "gate", 0.0, "ValueError: odd"
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


@pytest.mark.parametrize(
    ("totals", "expected"),
    [
        ((1, 1, 5, 5), 1.0),  # each row is compared with the other row of its prompt
        ((1, 1, 5, 5.001), 0.5),
        ((0, 0, 0, 1e-30), 0.5),
        ((NAN, NAN, NAN, NAN), 1.0),
        ((NAN, 1, 2, 2), 1.0),  # the only score of its group is its own baseline
        ((NAN, 1, 2, 3), 0.5),
    ],
)
def test_groups_are_dead_whose_totals_are_equal(totals: tuple[float, ...], expected: float) -> None:
    settled = Case([column(*totals)], [Rule("a")], [1.0]).settle()
    assert share_of_dead_groups(settled.totals, 2) == expected


@pytest.mark.parametrize(("apart", "is_dead"), [(4.7e-4, True), (6e-4, False)])
def test_totals_within_four_units_of_rounding_are_equal(apart: float, is_dead: bool) -> None:
    """Near 1000, float32 numbers are 2^-14 = 6.1e-5 apart, and 4 eps of 1000 are 4.8e-4."""
    settled = Case([column(1000, 1000 + apart, NAN)], [Rule("a")], [1.0], num_generations=3).settle()
    assert share_of_dead_groups(settled.totals, 3) == float(is_dead)


def explained(
    *columns: Any, weights: list[float], counts: list[list[float]] | None = None, gates: Any = (), **shares: float
) -> DeadRound:
    """Two groups of two rows; the names are a, b, ... Only the last component has gates."""
    names = "abc"[: len(columns)]
    rules = [Rule(name, gates=gates if name == names[-1] else ()) for name in names]
    settled = Case([column(*one) for one in columns], rules, weights, num_generations=2).settle()
    made = torch.tensor(counts or [[4.0, 0, 0, 0, 4, 0, 0]] * len(columns))
    return explain_dead_round(3, settled, rules, made, 2, **shares)  # type: ignore[arg-type]


FLAT, SMALL = (2, 2, 2, 2), (0, 1, 1, 1)


@pytest.mark.parametrize(
    ("columns", "weights", "shares", "cause", "is_cut_off"),
    [
        pytest.param([FLAT], [1.0], {}, "no reward differed", False, marks=pytest.mark.fault(33)),
        ([FLAT], [1.0], {"left_out": 1.0}, "every completion was truncated, and the policy excludes", True),
        ([FLAT], [1.0], {"left_out": 0.9}, "no reward differed", False),
        ([FLAT], [1.0], {"valued": 0.6}, "most completions were truncated", True),
        ([FLAT], [1.0], {"valued": 0.5}, "no reward differed", False),
        ([SMALL, FLAT], [1.0, 1e9], {"valued": 0.97}, "the weight of b drowns a", False),
        ([SMALL, FLAT], [1.0, 1e9], {"valued": 1.0}, "every completion was truncated, and the critic", True),
        ([SMALL, FLAT], [1.0, 0.5], {}, "a differed, but the totals did not", False),
        # 4 units in the last place of 2^21 in float32 are 4 x 2^-23 x 2^21 = 1. All that varies must be below.
        ([SMALL, (0, 0.5, 0, 0), FLAT], [1.0, 1.0, 2.0**20], {}, "the weight of c drowns a and b", False),
        ([SMALL, (0, 1.001, 0, 0), FLAT], [1.0, 1.0, 2.0**20], {}, "a and b differed, but the totals", False),
    ],
)
def test_why_a_round_gave_no_signal(columns: Any, weights: Any, shares: Any, cause: str, is_cut_off: bool) -> None:
    found = explained(*columns, weights=weights, **shares)
    assert (found.step, found.cause[: len(cause)], found.is_cut_off) == (3, cause, is_cut_off)


@pytest.mark.fault(33)
@pytest.mark.parametrize(
    ("values", "weight", "counts", "line"),
    [
        (FLAT, 1.0, None, "2 on every row, weight 1"),
        ([NAN] * 4, 1.0, None, "no score: it returned None for every row"),
        ([NAN] * 4, 1.0, [4.0, 4, 4, 0, 4, 0, 0], "no score: 4 rows failed"),
        ([NAN] * 4, 1.0, [0.0, 0, 0, 0, 0, 4, 0], "closed for every row by its gate on x"),
        ((-1, 3, 1, 1), 2.0, None, "from -1 to 3, weight 2: differs by up to 8 in a group"),
        # Within a group, a difference of rounding is none.
        ((2.0**21, 2.0**21 + 1, 1, 1), 1.0, None, "from 1 to 2.09715e+06, weight 1"),
        ((2.0**21, 2.0**21 + 2, 1, 1), 1.0, None, "from 1 to 2.09715e+06, weight 1: differs by up to 2 in a group"),
    ],
)
def test_a_line_on_each_component(values: Any, weight: float, counts: list[float] | None, line: str) -> None:
    own = [4.0, 0, 0, 0, 4, 0, 0]
    found = explained(FLAT, values, weights=[1.0, weight], counts=[own, counts or own], gates=(ScoreGate("x"),))
    assert found.lines == ["a: 2 on every row, weight 1", f"b: {line}"]


def test_an_environments_reward_has_no_gates_and_no_counts() -> None:
    settled = Case([column(1, 1), column(2, 2)], [Rule("a"), Rule("its own")], [1.0, 1.0], num_generations=2).settle()
    found = explain_dead_round(1, settled, [], torch.tensor([[2.0, 0, 0, 0, 2, 0, 0]]), 2)
    assert found.lines == ["a: 1 on every row, weight 1", "its own: 2 on every row, weight 1"]
