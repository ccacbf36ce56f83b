"""Rows settled without a training: totals by its aggregate, weights, gates, and totals that no row has alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy
import pytest

from rlhf_cli.errors import RewardFailed
from rlhf_cli.numerics.reward_columns import RunningDeviation
from rlhf_cli.rewards.stack.component import Component
from rlhf_cli.rewards.stack.scored_rows import ScoredReward, ScoredRow, settled_rows, why_no_total
from tests.support.settled_columns import NAN, Case, Rule, column

NOTHING = ScoredReward(None, None, None)


def component(name: str, **rules: object) -> Component:
    return Component(name=name, score=lambda **_: [], **rules)  # type: ignore[arg-type]


def smallest_less_100(rewards: dict[str, list[float | None]], weights: dict[str, float]) -> list[float]:
    """min over the rewards that apply, of weight times reward, less 100."""
    rows = zip(*([None if x is None else weights[name] * x for x in row] for name, row in rewards.items()), strict=True)
    return [min(x for x in row if x is not None) - 100.0 for row in rows]


def settled(
    raw: list[list[float | None]],
    *components: Component,
    fixed: list[list[float | None]] | None = None,
    weights: list[float] | None = None,
    aggregate: Any = "sum",
    running: dict[str, RunningDeviation] | None = None,
) -> Any:
    return settled_rows(
        components,
        raw,
        fixed or [[None] * len(components) for _ in raw],
        weights or [1.0] * len(components),
        aggregate=aggregate,
        running=running or {},
    )


def test_by_hand() -> None:
    """b takes 1 off and clips at 2. In the second row its gate gives it 0.5 instead; in the third nothing applies."""
    components = [component("a"), component("b", offset=1.0, clip=(-2.0, 2.0))]
    raw = [[0.5, 4.0], [1.0, None], [None, None]]
    found = settled(raw, *components, fixed=[[None, None], [None, 0.5], [None, None]], weights=[2.0, 0.25])
    assert found.no_total is None
    assert found.rows == [
        ScoredRow(2 * 0.5 + 0.25 * 2, {"a": ScoredReward(0.5, 0.5, 1.0), "b": ScoredReward(4.0, 2.0, 0.5)}),
        ScoredRow(2 * 1 + 0.25 * 0.5, {"a": ScoredReward(1.0, 1.0, 2.0), "b": ScoredReward(None, 0.5, 0.125)}),
        ScoredRow(None, {"a": NOTHING, "b": NOTHING}),
    ]


class TestAggregate:
    def test_by_hand(self) -> None:
        """min(0.1, 2 * 4) - 100; min(3, 2 * 1) - 100, the 1 a closed gate's; 5 - 100, the other does not apply."""
        found = settled(
            [[0.1, 4.0], [3.0, None], [5.0, None], [None, None]],
            *(component("a"), component("b")),
            fixed=[[None, None], [None, 1.0], [None, None], [None, None]],
            weights=[1.0, 2.0],
            aggregate=smallest_less_100,
        )
        assert [row.total for row in found.rows] == [0.1 - 100.0, -98.0, -95.0, None]
        assert found.rows[0].rewards["b"] == ScoredReward(4.0, 4.0, 8.0)  # the components are what they were

    @pytest.mark.parametrize("aggregate", ["sum", smallest_less_100])
    def test_a_row_has_the_total_that_training_gives_it(self, aggregate: Any) -> None:
        """Where nothing is taken from other rows, and nothing filled in, the two are one and the same."""
        a, b = numpy.random.default_rng(0).normal(0.0, 3.0, (2, 12))
        rules = [Rule("a", offset=0.5, clip=(-2.0, 2.0)), Rule("b")]
        case = Case([column(*a), column(*b)], rules, [0.3, -1.5], aggregate=aggregate)
        found = settled(
            [list(row) for row in zip(a, b, strict=True)],
            *(component("a", offset=0.5, clip=(-2.0, 2.0)), component("b")),
            weights=[0.3, -1.5],
            aggregate=aggregate,
        )
        assert [row.total for row in found.rows] == pytest.approx(case.settle().totals.tolist(), abs=1e-12)

    def test_the_example_of_the_documentation(self) -> None:
        """The least of 1 * 2 and 0.5 * 3, of 4 * 1 alone, and of -1 and a closed gate's 0."""
        page = Path(__file__).parents[3].joinpath("docs", "rewards.md").read_text()
        (code,) = re.findall(r"```python\n(def weakest.*?)```", page, re.DOTALL)
        names: dict[str, Any] = {}
        exec(code, names)
        found = settled(
            [[2.0, 3.0], [4.0, None], [-1.0, None]],
            *(component("a"), component("b")),
            fixed=[[None, None], [None, None], [None, 0.0]],
            weights=[1.0, 0.5],
            aggregate=names["weakest"],
        )
        assert [row.total for row in found.rows] == [1.5, 4.0, -1.0]

    def test_one_that_cannot_take_none_is_told_what_none_means(self) -> None:
        def product(rewards: Any, weights: Any) -> list[float]:
            return [x * y for x, y in zip(rewards["a"], rewards["b"], strict=True)]

        both = (component("a"), component("b"))
        with pytest.raises(RewardFailed) as caught:
            settled([[1.0, 2.0], [1.0, None]], *both, aggregate=product)
        assert "None where the reward does not apply" in str(caught.value.hint)
        with pytest.raises(RewardFailed) as other:  # negative control: it fails of something else
            settled([[1.0, 2.0]], *both, aggregate=lambda rewards, weights: 1 / 0)
        assert other.value.hint is None


class TestWhatNoRowHasAlone:
    @pytest.mark.parametrize("normalize", ["group", "batch", "running"])
    def test_a_deviation_of_other_rows(self, normalize: str) -> None:
        """Gated to 0.25 in the second row it has a value; that row has no total all the same, or only gated rows
        would.
        """
        found = settled(
            [[1.0, 4.0], [3.0, None], [5.0, 6.0]],
            *(component("a"), component("b", normalize=normalize)),
            fixed=[[None, None], [None, 0.25], [None, None]],
        )
        assert [row.total for row in found.rows] == [None] * 3
        assert f"rewards.b.normalize={normalize} divides by the deviation of" in str(found.no_total)
        of_b = [row.rewards["b"] for row in found.rows]
        assert of_b == [ScoredReward(4.0, None, None), ScoredReward(None, 0.25, 0.25), ScoredReward(6.0, None, None)]
        assert [row.rewards["a"].weighted for row in found.rows] == [1.0, 3.0, 5.0]

    def test_z_scores_of_a_group(self) -> None:
        found = settled([[1.0], [3.0]], component("a"), aggregate="normalize_then_sum")
        assert [(row.total, row.rewards["a"].effective) for row in found.rows] == [(None, 1.0), (None, 3.0)]
        assert "aggregate=normalize_then_sum" in str(found.no_total)

    def test_an_aggregate_is_not_asked(self) -> None:
        def never(rewards: Any, weights: Any) -> list[float]:
            raise AssertionError

        assert settled([[1.0]], component("a", normalize="group"), aggregate=never).rows[0].total is None

    def test_the_running_deviation_of_a_training_is_had(self) -> None:
        """Of 1, 2, 3, 6: mean 3, squares 4 + 1 + 0 + 9, deviation sqrt(14 / 3). The rows do not change it."""
        running = {"a": RunningDeviation().updated(column(1, 2, 3, NAN, 6))}
        found = settled([[70.0], [7.0]], component("a", normalize="running"), weights=[2.0], running=running)
        divisor = (14 / 3) ** 0.5
        assert found.no_total is None
        assert [row.total for row in found.rows] == pytest.approx([2 * 70 / divisor, 2 * 7 / divisor], rel=1e-12)


def test_why_says_the_first_reason() -> None:
    assert why_no_total({"a": "none", "b": "none"}, "sum") is None
    assert why_no_total({"a": "none"}, smallest_less_100) is None
    both = {"a": "none", "b": "running", "c": "batch"}
    assert str(why_no_total(both, "normalize_then_sum")).startswith("rewards.b.normalize=running")
    assert str(why_no_total(both, "sum", known={"b"})).startswith("rewards.c.normalize=batch")
    assert why_no_total({"b": "running"}, "sum", known={"b"}) is None


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
