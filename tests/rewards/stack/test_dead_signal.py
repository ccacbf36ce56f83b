"""Rounds without a signal, by hand: groups whose totals are equal, and which reward is to blame."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlhf_cli.rewards.stack.component import ScoreGate
from rlhf_cli.rewards.stack.dead_signal import ComponentStatistics, DeadRound, component_statistics, explain_dead_rounds
from rlhf_cli.rewards.stack.reward_metrics import share_of_dead_groups
from tests.support.settled_columns import NAN, Case, Rule, column


def rounds(*components: ComponentStatistics, left_out: float = 0.0) -> list[DeadRound]:
    return [DeadRound(step, components, left_out) for step in (3, 4)]


SEEN = ComponentStatistics("a", (), 1.0, 2.0, 2.0, 1.0, 0, 2.0, 0.0)
"""A reward of 2 on every row."""


class TestDead:
    @pytest.mark.parametrize(
        ("totals", "expected"),
        [
            ((1, 1, 1, 1), True),
            ((1, 1, 5, 5), True),  # each row is held against the other of its prompt
            ((1, 1, 5, 5.001), False),
            ((0, 0, 0, 0), True),
            ((0, 0, 0, 1e-30), False),
            ((NAN, NAN, NAN, NAN), True),
            ((NAN, 1, 2, 2), True),  # alone in its group it is its own baseline
            ((NAN, 1, 2, 3), False),
        ],
    )
    def test_by_group(self, totals: tuple[float, ...], expected: bool) -> None:
        settled = Case([column(*totals)], [Rule("a")], [1.0]).settle()
        assert (share_of_dead_groups(settled.totals, 2) == 1.0) is expected

    def test_rounding_is_no_difference_and_four_units_of_it_are_the_bound(self) -> None:
        """float32 has 24 bits: beside 1000 the next number is 2^-14 = 6.1e-5 away, and 4 eps of 1000 are 4.8e-4."""
        for apart, expected in ((6.1e-5, True), (4.7e-4, True), (6e-4, False)):
            settled = Case([column(1000, 1000 + apart)], [Rule("a")], [1.0], num_generations=2).settle()
            assert (share_of_dead_groups(settled.totals, 2) == 1.0) is expected


class TestSeen:
    def test_of_two_components(self) -> None:
        """a: raw -1 to 3; weighted by 2 its groups lie (3 - -1) * 2 = 8 and 0 apart. b: scored nowhere, 1 of 4 open."""
        rules = [Rule("a"), Rule("b", gates=(ScoreGate(by="a", low=2.0),))]
        settled = Case([column(-1, 3, 1, 1), column(NAN, NAN, NAN, NAN)], rules, [2.0, 1.0], num_generations=2).settle()
        first, second = component_statistics(settled, rules, [(4, 0), (1, 1)], 2)
        assert first == ComponentStatistics("a", (), 2.0, -1.0, 3.0, 1.0, 0, 6.0, 8.0)
        assert second == ComponentStatistics("b", ("a",), 1.0, None, None, 0.25, 1, 0.0, 0.0)

    def test_an_environments_own_reward_has_neither_gates_nor_counts(self) -> None:
        rules = [Rule("a"), Rule("its own")]
        settled = Case([column(1, 1), column(2, 2)], rules, [1.0, 1.0], num_generations=2).settle()
        _, own = component_statistics(settled, rules[:1], [(2, 0)], 2)
        assert (own.gated_by, own.open_fraction, own.errors) == ((), None, 0)


def differing(one: ComponentStatistics, **other: float) -> list[DeadRound]:
    """Two rounds, of which the second differs."""
    return [DeadRound(3, (one,), 0.0), DeadRound(4, (replace(one, **other),), 0.0)]


class TestSeveralRounds:
    @pytest.mark.parametrize(
        ("shares", "said"),
        [
            ({"left_out": (1.0, 1.0)}, "every completion was cut off, and truncation leaves such rows out"),
            ({"left_out": (1.0, 0.9)}, None),
            ({"valued": (1.0, 1.0)}, "every completion was cut off, and in place of its score"),
            ({"valued": (1.0, 0.6)}, "most completions were cut off"),
            ({"valued": (0.9, 0.5)}, None),
        ],
    )
    def test_cut_off_in_all_of_them(self, shares: dict[str, tuple[float, float]], said: str | None) -> None:
        ((name, both),) = shares.items()
        found = explain_dead_rounds(
            [replace(dead, **{name: one}) for dead, one in zip(rounds(SEEN), both, strict=True)]
        )
        assert found.cause.startswith(said or "every reward was constant within its groups")
        assert found.is_cut_off is (said is not None)
        assert found.lines == ["a: 2 on every row, weight 1"]

    def test_a_score_of_several_values(self) -> None:
        """From the least to the greatest of all rounds; what a group makes of it is that of the widest round."""
        for other, between in (
            ({"low": 0.0}, "0 to 2"),
            ({"high": 5.0}, "2 to 5"),
            ({"low": 0.0, "high": 5.0}, "0 to 5"),
        ):
            (line,) = explain_dead_rounds(differing(SEEN, **other)).lines
            assert line.startswith(f"a: from {between}, weight 1: the same for all rows of a group, after offset, clip")
        for dead in (differing(SEEN, spread=1.0), differing(SEEN, spread=1.0)[::-1]):
            assert explain_dead_rounds(dead).lines == ["a: 2 on every row, weight 1: up to 1 apart in a group"]
        assert explain_dead_rounds(differing(SEEN, weight=0.5)).lines == ["a: 2 on every row, weight 0.5"]

    def test_what_drowns_by_its_largest_size(self) -> None:
        small = replace(SEEN, name="small", low=0.0, high=1.0, size=1.0, spread=1.0)
        big = replace(SEEN, name="big", size=1.0)
        dead = [DeadRound(3, (small, big), 0.0), DeadRound(4, (small, replace(big, size=2e9)), 0.0)]
        assert explain_dead_rounds(dead).cause == "the weight of big drowns small"

    def test_a_gate_that_opened_once(self) -> None:
        shut = replace(SEEN, gated_by=("b",), open_fraction=0.0)
        assert explain_dead_rounds(rounds(shut)).cause.startswith("every row was gated out of a")
        assert explain_dead_rounds(differing(shut, open_fraction=0.5)).lines == ["a: 2 on every row, weight 1"]

    def test_rounding_in_the_size_of_the_score_is_no_difference(self) -> None:
        wide = replace(SEEN, size=2.0**21, spread=1.0)
        assert explain_dead_rounds(rounds(wide)).lines == ["a: 2 on every row, weight 1"]
        assert "apart" in explain_dead_rounds(rounds(replace(wide, spread=1.001))).lines[0]
        assert explain_dead_rounds(differing(wide, size=2.0)).lines == ["a: 2 on every row, weight 1"]


class TestCause:
    def test_a_watched_reward_is_not_to_blame_where_most_rows_have_the_critics_value(self) -> None:
        watched = replace(SEEN, name="near", weight=0.0, low=0.0, high=1.0)
        for share, blamed in ((0.97, "most completions were cut off"), (0.3, "what near told apart did not reach")):
            found = explain_dead_rounds([replace(dead, valued=share) for dead in rounds(SEEN, watched)])
            assert blamed in found.cause, share
            assert found.is_cut_off is (share > 0.5), share

    def test_the_length_limit_is_not_to_blame_for_a_total_that_hides_what_rewards_tell_apart(self) -> None:
        small = replace(SEEN, name="small", low=0.0, high=1.0, size=1.0, spread=1.0)
        dead = rounds(small, replace(SEEN, name="big", weight=1e9, size=2e9))
        found = explain_dead_rounds([replace(one, valued=0.97) for one in dead])
        assert found.cause == "the weight of big drowns small"
        assert not found.is_cut_off

    @pytest.mark.fault(33)
    def test_constant(self) -> None:
        found = explain_dead_rounds(rounds(SEEN, replace(SEEN, name="b", weight=0.5)))
        assert found.cause == "every reward was constant within its groups"
        assert found.lines == ["a: 2 on every row, weight 1", "b: 2 on every row, weight 0.5"]

    @pytest.mark.fault(33)
    def test_none_and_failures(self) -> None:
        none = replace(SEEN, low=None, high=None, size=0.0)
        found = explain_dead_rounds(rounds(none, replace(none, name="b", errors=3)))
        assert found.cause == "no reward applied to any row"
        assert found.lines == ["a: no score: it returned None for every row", "b: no score: 6 rows failed"]

    def test_drowned(self) -> None:
        small = replace(SEEN, name="small", low=0.0, high=1.0, size=1.0, spread=1.0)
        found = explain_dead_rounds(rounds(small, replace(SEEN, name="big", weight=1e9, size=2e9)))
        assert found.cause == "the weight of big drowns small"
        assert found.lines[0] == "small: from 0 to 1, weight 1: up to 1 apart in a group"

    @pytest.mark.parametrize(
        ("spreads", "is_drowned"),
        [((1.0, 0.5), True), ((0.5, 1.0), True), ((1.0, 1.001), False), ((1.001, 0.5), False)],
    )
    def test_drowned_is_what_is_no_more_than_rounding_beside_the_largest(
        self, spreads: tuple[float, float], is_drowned: bool
    ) -> None:
        """4 units in the last place of 2^21 in float32 are 4 x 2^-23 x 2^21 = 1. All that varies has to be below."""
        one, other = (
            replace(SEEN, name=name, low=0.0, size=2.0, spread=spread)
            for name, spread in zip(("one", "other"), spreads, strict=True)
        )
        cause = explain_dead_rounds(rounds(one, replace(SEEN, name="big", size=2.0**21), other)).cause
        assert cause == (
            "the weight of big drowns one and other"
            if is_drowned
            else "one and other told rows apart and the total did not: see the aggregate"
        )

    def test_gated_out(self) -> None:
        shut = replace(SEEN, name="shut", gated_by=("a",), low=None, high=None, open_fraction=0.0, size=0.0)
        found = explain_dead_rounds(rounds(SEEN, shut))
        assert found.cause == "every row was gated out of shut, and nothing else told rows apart"
        assert found.lines[1] == "shut: closed for every row by its gate on a"

    def test_a_weight_of_nothing(self) -> None:
        watched = replace(SEEN, name="watched", weight=0.0, low=0.0, size=0.0)
        found = explain_dead_rounds(rounds(SEEN, watched))
        assert found.cause == "what watched told apart did not reach the total"
        assert found.lines[1] == "watched: from 0 to 2, but its weight is 0"
