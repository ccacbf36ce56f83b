"""What is logged of every reward, against figures worked by hand on four rows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from rlhf_cli.rewards.stack import reward_metrics
from rlhf_cli.rewards.stack.component import Component, RewardOutcome, ScoreGate
from rlhf_cli.rewards.stack.reward_metrics import component_metrics, outcome_counts, table_columns
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

    def test_z_scored_totals_are_logged_in_reward_units(self) -> None:
        """a + 2 b over the scorable rows, a's missing score at a's mean in the group: 5, 13 and 2 + 4."""
        case = Case([A, B], [Rule("a"), Rule("b")], [1.0, 2.0], aggregate="normalize_then_sum")
        found = component_metrics(case.settle(), torch.zeros(0, 7))
        assert found["reward"] == pytest.approx((5 + 13 + 6) / 3)
        assert found["reward_std"] == pytest.approx(((9 + 25 + 4) / 2) ** 0.5)


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

    def test_each_pair_is_logged_once(self) -> None:
        rising = [column(1, 2, 3, 4), column(4, 1, 0, 3), column(2, 2, 1, 5)]
        found = {name for name in metrics_of(*rising, weights=[1, 1, 1]) if "/correlation/" in name}
        assert found == {f"rewards/correlation/{pair}" for pair in ("a/b", "a/c", "b/c")}


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
    ranks = [column(0, 0, 0, 0, 1, 2, 3, 4), column(1, 1, 1, 1, 5, 6, 7, 8)]
    settled = Case(ranks, [Rule("a"), Rule("b")], [1.0, -2.0]).settle()
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
    }
