"""The rewards of the embedded worlds, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_cli.rewards.toy import (
    add,
    digits_only,
    score_speakers,
    second_is_larger,
    second_turn_larger,
    speakers_larger,
    sums_correct,
    sums_true,
    turns_have_form,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", 1.0),
        *(("8 or 7", 1.0), ("7 or 8", 0.0)),  # the last one counts
        ("-7", 0.0),
        ("3-7", 1.0),  # this minus subtracts
        ("7.5", 0.0),
        ("x7", 0.0),
        ("7" * 5000, 0.0),
        ("", 0.0),
    ],
)
def test_sum(text: str, expected: float) -> None:
    assert sums_correct([text], a=[3], b=[4]) == [expected]


def test_sum_rows() -> None:
    completions = ["7", [{"role": "assistant", "content": "12"}], "12"]
    assert sums_correct(completions, a=["3", 5, 5], b=["4", 7, 8]) == [1.0, 1.0, 0.0]
    assert add(3, 4) == 7
    assert sums_true(["17+5=", "17+5="], ["22", "21"]) == [1.5, 0.5]
    messages = [[{"role": "user", "content": "17+5="}]], [[{"role": "assistant", "content": "22"}]]
    assert sums_true(*messages) == [1.5]


@pytest.mark.parametrize(
    ("text", "expected"), [(" 12\n", 1.0), *((text, 0.0) for text in ("-12", "1 2", "x", "²", ""))]
)
def test_digits_only(text: str, expected: float) -> None:
    assert digits_only([text, [{"role": "assistant", "content": text}]]) == [expected, expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A: 4\nB: 7", [(0, 4, -1.0), (5, 9, 1.0)]),
        (" \nA: 09\nB: 4\n", [(2, 7, 1.0), (8, 12, -1.0)]),  # 9 is as much as a speaker may say
        ("A: 7\nB: 7", []),
        ("A: 7\nB: 10", -1.0),
        ("A: 4\nB: 7\nB: 8", -1.0),
        *((text, -1.0) for text in ("A: 4\nso\nB: 7", "A: 4, B: 7", "B: 7\nA: 4")),
        ("A: ٤\nB: 7", -1.0),
        ("A: 4\nB: " + "9" * 5000, -1.0),
    ],
)
def test_score(text: str, expected: Any) -> None:
    assert score_speakers(text, "A", "B", max_value=9) == expected


def test_a_number_for_each_turn() -> None:
    turns = {"s1": ["A: 4", "A: 4\n", "A: 4", "so", "A: 12"], "s2": ["B: 7", "B: 4", "C: 9", "B: 9", "B: 9"]}
    speakers = {"speaker_a": ["A"] * 5, "speaker_b": ["B"] * 5}
    assert turns_have_form(**turns, **speakers) == [[1.0, 1.0], [1.0, 1.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
    assert second_turn_larger(**turns, **speakers) == [[0.0, 1.0], *[[0.0, 0.0]] * 4]


def test_rows() -> None:
    texts = ["A: 4\nB: 17", [{"role": "assistant", "content": "C: 1\nD: 0"}], "C: 1"]
    columns = {"speaker_a": ["A", "C", "C"], "speaker_b": ["B", "D", "D"]}
    rest = [[(0, 4, 2.0), (5, 9, -2.0)], -3.0]
    rules = {"mass": 2.0, "malformed": -3.0}
    assert speakers_larger(texts, **columns, **rules) == [[(0, 4, -2.0), (5, 10, 2.0)], *rest]
    assert speakers_larger(texts, **columns, **rules, max_value=[9, "9", 9]) == [-3.0, *rest]
    assert speakers_larger(texts, **columns)[1:] == [[(0, 4, 1.0), (5, 9, -1.0)], -1.0]
    assert second_is_larger([*texts, "C: 4\nD: 4"], ["A", "C", "C", "C"], ["B", "D", "D", "D"]) == [1.0, 0.0, None, 0.0]
