"""Rows settled without a training: totals, weights, gates and rows that no reward applies to."""

from __future__ import annotations

from rlhf_cli.measure.scored_rows import SettledReward, SettledRow
from rlhf_cli.stack.component import Component
from rlhf_cli.stack.settled_rows import settled_rows
from tests.support.settled_columns import NAN, Case, Rule, column


def component(name: str, **rules: object) -> Component:
    return Component(name=name, score=lambda **_: [], **rules)  # type: ignore[arg-type]


def test_by_hand() -> None:
    """b takes 1 off and clips at 2. In the second row its gate gives it 0.5 instead; in the third nothing applies."""
    components = [component("a"), component("b", offset=1.0, clip=(-2.0, 2.0))]
    raw = [[0.5, 4.0], [1.0, None], [None, None]]
    fixed = [[None, None], [None, 0.5], [None, None]]
    nothing = SettledReward(None, None, None)
    assert settled_rows(components, raw, fixed, [2.0, 0.25]) == [
        SettledRow(2 * 0.5 + 0.25 * 2, {"a": SettledReward(0.5, 0.5, 1.0), "b": SettledReward(4.0, 2.0, 0.5)}),
        SettledRow(2 * 1 + 0.25 * 0.5, {"a": SettledReward(1.0, 1.0, 2.0), "b": SettledReward(None, 0.5, 0.125)}),
        SettledRow(None, {"a": nothing, "b": nothing}),
    ]


def test_totals_are_weighed_and_of_nothing_there_is_none() -> None:
    """2 * 1 - 0.5 * 3, 2 * 2 - 0.5 * 4."""
    columns = [column(1, 2, NAN, NAN), column(3, 4, NAN, NAN)]
    totals = Case(columns, [Rule("a"), Rule("b")], [2.0, -0.5]).settle().totals.tolist()
    assert totals[:2] == [0.5, 2.0]
    assert all(total != total for total in totals[2:])


def test_normalised_scores_are_divided() -> None:
    """0 and 2 deviate by sqrt(2); the group's other two count nowhere."""
    settled = Case([column(0, 2, NAN, NAN)], [Rule("a", normalize="group")], [1.0]).settle()
    assert settled.unfilled[:2, 0].tolist() == [0.0, 2 / 2**0.5]
