"""Stored scores in place of a reward, words with several values, and gates in words; no run is needed."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_cli.analysis.whatif.question import alternatives, gate_in_words
from rlhf_cli.analysis.whatif.stored_rounds import ROW, StoredFailure, StoredRound, StoredScores
from rlhf_cli.errors import ConfigError

TEXTS = ["a", "bb", "ccc", "dddd"]


def length(completions: list[str], **_: object) -> list[float]:
    return [float(len(text)) for text in completions]


def asked(
    function: Any, rows: tuple[int, ...] = (0, 1, 2, 3), *, is_rescored: bool = False, **columns: list[object]
) -> tuple[StoredScores, list[object]]:
    """What stands in for the reward `r`, and what it answers of these rows of a round with these columns."""
    scores = StoredScores("r", function, is_rescored=is_rescored)
    scores.begin(StoredRound(0, 0, {"completion": list(TEXTS), **columns}))
    batch = {ROW: list(rows), "completions": [TEXTS[row] for row in rows], "shared": "for all"}
    return scores, scores(**batch)


CLOSED = {"r": [1.0, None, 3.0, None], "r.closed_by": [None, "gate", None, "gate"]}
"""Two of four are scored by their length, the others were never asked for."""


def test_what_was_stored_is_answered_in_the_order_that_is_asked_for() -> None:
    columns = {"r": [0.5, None, -2.0, 4.0], "r.error": [None, None, None, "it broke"]}
    scores, found = asked(None, (3, 0, 1), **columns)
    assert isinstance(found[0], StoredFailure)
    assert (str(found[0]), found[1:]) == ("it broke", [0.5, None])
    assert (scores.unknown, scores.problem, scores.num_computed) == (set(), None, 0)


@pytest.mark.parametrize("columns", [{}, CLOSED])
def test_what_is_not_stored_and_not_computed_is_unknown(columns: dict[str, list[object]]) -> None:
    scores, found = asked(None, (2, 1, 3), **columns)
    assert found == [3.0 if columns else None, None, None]
    assert scores.unknown == ({1, 3} if columns else {1, 2, 3})
    scores.begin(StoredRound(1, 1, {"completion": ["x"], "r": [7.0]}))
    assert scores.unknown == set()
    assert scores(**{ROW: [0]}) == [7.0]


def test_what_is_not_stored_is_computed_and_counted() -> None:
    scores, found = asked(length, (3, 2, 1, 0), **CLOSED)
    assert (found, scores.unknown, scores.num_computed) == ([4.0, 3.0, 2.0, 1.0], set(), 2)
    assert asked(length, (0, 2), **CLOSED)[0].num_computed == 0
    rescored, found = asked(length, is_rescored=True, **{"r": [9.0] * 4})
    assert (found, rescored.num_computed) == ([1.0, 2.0, 3.0, 4.0], 4)


def test_a_function_is_given_its_columns_row_by_row() -> None:
    seen: list[dict[str, object]] = []

    def reward(completions: list[str], **named: object) -> list[float]:
        seen.append(named)
        return length(completions)

    asked(reward, (1, 0), **CLOSED)
    assert seen == [{"shared": "for all"}]


@pytest.mark.parametrize(
    ("stored", "is_the_same"),
    [
        (3.0, True),
        (3.0 * (1 + 9e-7), True),  # float32 keeps seven digits
        (3.0 * (1 + 2e-6), False),
        (None, False),
        (0.0, False),
    ],
)
def test_a_function_has_to_give_again_what_it_gave(stored: float | None, is_the_same: bool) -> None:
    scores, found = asked(length, **{**CLOSED, "r": [1.0, None, stored, None]})
    assert (scores.problem is None) == is_the_same
    if scores.problem is not None:
        assert (found, scores.num_computed) == ([1.0, None, stored, None], 0)
        assert scores.problem.where == "rewards.r"
        assert scores.problem.got == f"3.0 for a completion that it gave {stored} in the run"
        assert scores.problem.expected == "a function of the text and the columns alone, unchanged since the run"


@pytest.mark.parametrize(("stored", "is_the_same"), [(1e-9, True), (5e-7, True), (2e-6, False), (None, False)])
def test_near_nothing_a_millionth_is_no_difference(stored: float | None, is_the_same: bool) -> None:
    """A score of 0 has no digits to round: seven of them would leave no room."""
    scores, _ = asked(lambda completions, **_: [0.0] * len(completions), **{**CLOSED, "r": [0.0, None, stored, None]})
    assert (scores.problem is None) == is_the_same


def test_a_row_that_failed_is_not_asked_again() -> None:
    columns = {**CLOSED, "r.error": ["it broke", None, None, None], "r": [None, None, 3.0, None]}
    scores, found = asked(length, **columns)
    assert isinstance(found[0], StoredFailure)
    assert (found[1:], scores.problem) == ([2.0, 3.0, 4.0], None)


def needs(completions: list[str], answer: list[str], **_: object) -> list[float]:
    return length(completions)


def needs_ids(completions: list[str], completion_ids: list[list[int]], **_: object) -> list[float]:
    return length(completions)


def may_have_ids(completions: list[str], completion_ids: object = None, **_: object) -> list[float]:
    return length(completions)


@pytest.mark.parametrize(
    ("function", "column"), [(needs, "answer"), (needs_ids, "completion_ids"), (may_have_ids, None)]
)
def test_a_function_of_a_column_that_was_not_stored(function: Any, column: str | None) -> None:
    scores, found = asked(function, **CLOSED)
    assert found == ([1.0, None, 3.0, None] if column else [1.0, 2.0, 3.0, 4.0])
    assert (scores.problem is None) == (column is None)
    if scores.problem is not None:
        assert scores.problem.what == f"the stored completions have no column {column!r}"
        assert (scores.problem.where, scores.problem.expected) == ("rewards.r", f"{column}, which the reward reads")


def test_every_combination_of_values() -> None:
    assert alternatives(["a=1"]) == [["a=1"]]
    assert alternatives([]) == [[]]
    assert alternatives(["a=1,2", "b=x", "c=choice(3,4)"]) == [
        *(["a=1", "b=x", "c=3"], ["a=1", "b=x", "c=4"], ["a=2", "b=x", "c=3"], ["a=2", "b=x", "c=4"])
    ]
    assert alternatives(["a.b=[1,2]", "c={d: 1}", "e={{"]) == [["a.b=[1,2]", "c={d: 1}", "e={{"]]
    assert alternatives(["+a=range(0,3)"]) == [["+a=0"], ["+a=1"], ["+a=2"]]


def test_at_most_fifty() -> None:
    assert len(alternatives(["a=range(0,10)", "b=range(0,5)"])) == 50
    with pytest.raises(ConfigError, match="fill no table") as caught:
        alternatives(["a=range(0,17)", "b=range(0,3)"])
    error = caught.value
    assert (error.where, error.got) == ("command line", "51 combinations")
    assert (error.expected, error.hint) == ("at most 50", "fewer values a word")


@pytest.mark.parametrize(
    ("gate", "words"),
    [
        ({"at_least": 1.0, "otherwise": "zero"}, "a >= 1 else zero"),
        ({"at_most": 0.25, "otherwise": -0.5}, "a <= 0.25 else -0.5"),
        ({"equals": 2, "otherwise": "exclude"}, "a = 2 else exclude"),
        ({"between": [0.0, 1.5], "otherwise": "zero"}, "a in [0, 1.5] else zero"),
        ({"between": (0.0, 1.5), "otherwise": "zero"}, "a in [0, 1.5] else zero"),
        ({"at_least": 0.0, "at_most": None, "otherwise": "zero"}, "a >= 0 else zero"),
        ({"at_least": 0.0, "at_most": 1.0, "otherwise": "zero"}, "a >= 0 and <= 1 else zero"),
    ],
)
def test_a_gate_in_words(gate: dict[str, object], words: str) -> None:
    assert gate_in_words({"by": "a", **gate}) == words
