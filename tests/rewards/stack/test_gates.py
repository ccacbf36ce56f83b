"""Gates: when they are open, in which order rewards are evaluated, and what a closed one saves."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rlhf_cli.rewards.stack.component import Component, ScoreGate, levels
from rlhf_cli.rewards.stack.reward_stack import RewardStack

NAMES = ["p0", "p1", "p2", "p3"]
BATCH: dict[str, Any] = {
    "prompts": NAMES,
    "completions": ["a", "bb", "ccc", "dddd"],
    "completion_ids": [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4]],
    "row": [0, 1, 2, 3],
}


class Table:
    """A reward that returns the score of a row number and remembers the rows it scored."""

    def __init__(self, *scores: float | None) -> None:
        self.scores = scores
        self.asked: list[list[int]] = []

    def __call__(self, row: list[int], **batch: Any) -> list[float | None]:
        assert all(len(batch[key]) == len(row) for key in ("prompts", "completions", "completion_ids"))
        assert batch["prompts"] == [NAMES[index] for index in row]
        self.asked.append(list(row))
        return [self.scores[index] for index in row]


def at_least(by: str, low: float = 1.0, otherwise: Any = 0.0) -> ScoreGate:
    return ScoreGate(by, low=low, otherwise=otherwise)


def evaluated(*components: Component) -> RewardStack:
    stack = RewardStack(components)
    stack.evaluate(**BATCH)
    stack.close()
    return stack


@pytest.mark.parametrize(
    ("gate", "is_open", "is_closed"),
    [
        (ScoreGate("g", low=0.5), [0.5, 0.51, 9.0], [0.49, 0.0, -9.0]),
        (ScoreGate("g", high=0.5), [0.5, 0.0, -9.0], [0.51, 9.0]),
        (ScoreGate("g", low=2.0, high=2.0), [2.0], [1.999, 2.001, -2.0]),
        (ScoreGate("g", low=-1.0, high=1.0), [-1.0, 0.0, 1.0], [-1.01, 1.01]),
        (ScoreGate("g", low=-3.0), [-3.0, -2.0], [-3.5]),
    ],
    ids=["at_least", "at_most", "equals", "between", "negative"],
)
def test_is_open(gate: ScoreGate, is_open: list[float], is_closed: list[float]) -> None:
    assert all(gate.is_open(raw) for raw in is_open)
    assert not any(gate.is_open(raw) for raw in is_closed)


@pytest.mark.parametrize("gate", [ScoreGate("g"), ScoreGate("g", low=0.0), ScoreGate("g", high=0.0)])
@pytest.mark.parametrize("raw", [None, math.nan])
def test_no_score_closes_every_gate(gate: ScoreGate, raw: float | None) -> None:
    assert not gate.is_open(raw)
    assert gate.is_open(0.0)


class TestLevels:
    def test_independent_ones_are_one_level_in_the_order_given(self) -> None:
        assert levels({"b": [], "a": [], "c": []}) == [["b", "a", "c"]]

    def test_a_diamond(self) -> None:
        assert levels({"d": ["b", "c"], "c": ["a"], "b": ["a"], "a": [], "e": []}) == [["a", "e"], ["c", "b"], ["d"]]


class TestWhatIsComputed:
    def test_only_the_rows_that_are_open(self) -> None:
        a, b = Table(1, 0, 1, 0), Table(0.5, 7, 0.1, 7)
        stack = evaluated(Component("b", b, gates=(at_least("a"),)), Component("a", a))
        assert (a.asked, b.asked) == ([[0, 1, 2, 3]], [[0, 2]])
        found = stack.outcomes["b"]
        assert found.raw == [0.5, None, 0.1, None]
        assert found.fixed == [None, 0.0, None, 0.0]
        assert found.closed_by == [None, "a", None, "a"]
        assert (found.calls, found.calls_saved, found.num_open, found.num_excluded) == (2, 2, 2, 0)

    def test_none_where_every_gate_is_closed(self) -> None:
        a, b = Table(0, 0, 0, 0), Table(1, 1, 1, 1)
        found = evaluated(Component("a", a), Component("b", b, gates=(at_least("a"),))).outcomes["b"]
        assert (b.asked, found.calls, found.calls_saved) == ([], 0, 4)

    def test_an_eager_reward_scores_closed_rows_that_still_count_as_closed(self) -> None:
        b = Table(0.5, 7, 0.1, 7)
        component = Component("b", b, gates=(at_least("a"),), eager=True)
        found = evaluated(Component("a", Table(1, 0, 1, 0)), component).outcomes["b"]
        assert b.asked == [[0, 1, 2, 3]]
        assert found.raw == [0.5, None, 0.1, None]
        assert found.fixed == [None, 0.0, None, 0.0]
        assert found.closed_by == [None, "a", None, "a"]
        assert (found.calls, found.calls_saved, found.num_open) == (4, 0, 2)

    def test_a_chain_of_gates_passes_on_open_rows(self) -> None:
        a, b, c = Table(1, 1, 1, 0), Table(1, 0, 1, 1), Table(5, 6, 7, 8)
        stack = evaluated(
            Component("c", c, gates=(at_least("b"),)), Component("b", b, gates=(at_least("a"),)), Component("a", a)
        )
        assert (a.asked, b.asked, c.asked) == ([[0, 1, 2, 3]], [[0, 1, 2]], [[0, 2]])
        # row 3: b has no score, its gate is closed, and so is the gate that reads b
        assert stack.outcomes["c"].raw == [5, None, 7, None]
        assert stack.outcomes["c"].closed_by == [None, "b", None, "b"]
        assert stack.outcomes["b"].closed_by == [None, None, None, "a"]

    def test_a_closed_gates_number_opens_no_other_gate(self) -> None:
        """A gate reads raw scores: the 5.0 that a closed row of b is given is none."""
        b, c = Table(1, 1, 1, 1), Table(9, 9, 9, 9)
        stack = evaluated(
            Component("a", Table(1, 0, 1, 0)),
            Component("b", b, gates=(at_least("a", otherwise=5.0),)),
            Component("c", c, gates=(at_least("b"),)),
        )
        assert stack.outcomes["b"].fixed == [None, 5.0, None, 5.0]
        assert c.asked == [[0, 2]]

    def test_all_of_several_must_open(self) -> None:
        c = Table(1, 2, 3, 4)
        gates = (at_least("a"), ScoreGate("b", high=0.5, otherwise="exclude"))
        found = evaluated(
            Component("a", Table(1, 1, 0, 0)), Component("b", Table(0, 1, 0, 1)), Component("c", c, gates=gates)
        ).outcomes["c"]
        assert c.asked == [[0]]
        assert found.closed_by == [None, "b", "a", "a"]  # the first that is closed decides
        assert found.fixed == [None, None, 0.0, 0.0]
        assert found.num_excluded == 1

    def test_a_row_that_failed_closes_what_reads_it(self) -> None:
        def a(row: list[int], **_: Any) -> list[float]:
            if 2 in row:
                raise ValueError("two")
            return [1.0] * len(row)

        b = Table(1, 1, 1, 1)
        stack = evaluated(Component("a", a, on_error=1.0), Component("b", b, gates=(at_least("a"),)))
        assert stack.outcomes["a"].fixed == [None, None, 1.0, None]
        assert b.asked == [[0, 1, 3]]


class TestLogExtra:
    @staticmethod
    def says(row: list[int], log_extra: Any, **_: Any) -> list[float]:
        log_extra("said", [f"row {index}" for index in row])
        return [1.0] * len(row)

    def test_a_batch_without_logged_values_still_has_the_column(self) -> None:
        """TRL would otherwise show the last batch's values beside this batch's completions."""
        a = Table(0, 1, 0, 1)
        stack = RewardStack([Component("a", a), Component("b", self.says, gates=(at_least("a"),))])
        stack.evaluate(**BATCH, log_extra=print)
        a.scores = (0, 0, 0, 0)
        stack.evaluate(**BATCH, log_extra=print)
        assert stack.outcomes["b"].extra == {"said": [None] * 4}
        stack.close()
