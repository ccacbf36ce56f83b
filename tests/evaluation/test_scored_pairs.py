"""Scored pairs: which order they are in, and how a row is taken apart into prompt and answers."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from rlhf_cli.errors import DataError
from rlhf_cli.evaluation.scored_pairs import ScoredPair, pairs_of, texts_of


@pytest.mark.parametrize(
    ("chosen", "rejected", "verdict"),
    [(1.0, 0.5, "right"), (0.5, 1.0, "wrong"), (0.5, 0.5, "tie"), (math.nan, 0.5, "wrong")],
)
def test_verdict(chosen: float, rejected: float, verdict: str) -> None:
    assert ScoredPair(1, 1, "p", "c", "r", chosen, rejected, None).verdict == verdict


def decoded(ids: list[int], *, skip_special_tokens: bool) -> str:
    assert skip_special_tokens
    return "".join({1: "2+2=", 2: "4", 3: "!", 4: "5"}[token] for token in ids)


IDS = {"chosen_ids": [1, 2, 3], "rejected_ids": [1, 4]}


@pytest.mark.parametrize("prompt", ["2+2=4", "2+2=5", None, 7, [], ["2+"]])
def test_the_prompt_of_ids(prompt: object) -> None:
    """The row's own prompt, where both begin with it; a list is none if it is not of messages."""
    row = {**IDS, "prompt": prompt, "chosen": "other", "rejected": "texts"}
    assert texts_of(row, decoded) == ("2+2=", "4!", "5")
    assert texts_of({**row, "prompt": "2+"}, decoded) == ("2+", "2=4!", "2=5")


@pytest.mark.parametrize(("one", "other"), [("chosen", "rejected"), ("rejected", "chosen")])
def test_ids_are_decoded_unless_both_answers_are_conversations(one: str, other: str) -> None:
    assert texts_of({**IDS, one: said("a", "x"), other: "text"}, decoded) == ("2+2=", "4!", "5")


def said(*texts: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": text} for text in texts]


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ({"prompt": said("a", "b"), "chosen": said("x"), "rejected": said("y")}, ("b", "x", "y")),
        ({"chosen": said("a", "b", "x"), "rejected": said("a", "b", "y")}, ("b", "x", "y")),
        ({"prompt": said("a"), "chosen": said("b", "x"), "rejected": said("b", "y")}, ("b", "x", "y")),
        ({"chosen": said("x"), "rejected": said("y")}, ("", "x", "y")),
        ({"chosen": said({"é": 1}), "rejected": said(None)}, ("", '{"é": 1}', "null")),
    ],
)
def test_of_a_conversation_the_last_messages(row: dict[str, object], found: tuple[str, str, str]) -> None:
    assert texts_of(row, decoded) == found


USER, GOOD, BAD = [{"role": role, "content": t} for role, t in (("user", "q"), ("assistant", "x"), ("assistant", "y"))]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"prompt": "q", "chosen": [USER, GOOD], "rejected": [USER, BAD]},  # training does not read this prompt
        {"prompt": [USER], "chosen": "x", "rejected": "y"},
    ],
)
def test_conversations(row: dict[str, Any]) -> None:
    assert pairs_of([row]) == [([USER], [GOOD], [BAD])]


def test_transcripts_part_where_they_differ_first() -> None:
    """Some messages shared, then answers of different lengths; of one that goes on from the other all is shared."""
    ends = ([GOOD], [BAD]), ([GOOD, USER, BAD], [BAD]), ([BAD], [GOOD, USER]), ([], [BAD, USER])
    for before, (chosen, rejected) in itertools.product(([USER, GOOD], [USER, GOOD, USER]), ends):
        assert pairs_of([{"chosen": before + chosen, "rejected": before + rejected}]) == [(before, chosen, rejected)]


def test_plain_texts() -> None:
    rows: list[dict[str, object]] = [
        {"chosen": "q x", "rejected": "q y"},
        {"prompt": "q", "chosen": "x", "rejected": "y"},
    ]
    assert pairs_of(rows) == [("", "q x", "q y"), ("q", "x", "y")]
    assert pairs_of(rows[1:], as_chat=True) == [([USER], [GOOD], [BAD])]


ANSWER, TEXT, BEGIN = "an answer on both sides", "text on both sides, or a list", "transcripts that begin with the same"
TWO = {"chosen": [GOOD], "rejected": [BAD]}


@pytest.mark.parametrize(
    ("row", "got", "expected"),
    [
        ({"prompt": "q", "chosen": None, "rejected": "y"}, "str, NoneType, str", ANSWER),
        ({"prompt": "q", "chosen": "x", "rejected": ""}, "str, str, str", ANSWER),
        ({"prompt": "q", "chosen": "x", "rejected": [BAD]}, "str, str, list", TEXT),
        ({"prompt": 5, "chosen": "x", "rejected": "y"}, "int, str, str", TEXT),
        ({"prompt": None, "chosen": [GOOD], "rejected": "y"}, "NoneType, list, str", TEXT),
        ({"prompt": [USER], "chosen": [GOOD], "rejected": "y"}, "list, list, str", TEXT),
        ({"prompt": [USER], "chosen": "x", "rejected": [BAD]}, "list, str, list", TEXT),
        ({"prompt": [], **TWO}, "list, list, list", TEXT),
        ({"prompt": "q", **TWO}, "str, list, list", BEGIN),
        (TWO, "NoneType, list, list", BEGIN),
    ],
)
def test_what_is_no_pair(row: dict[str, Any], got: str, expected: str) -> None:
    with pytest.raises(DataError) as caught:
        pairs_of([{"prompt": "q", "chosen": "x", "rejected": "y"}, row])
    error = caught.value
    kinds = [kind.split(": ")[1] for kind in str(error.got).split(", ")]
    assert (error.where, ", ".join(kinds)) == ("the evaluation rows, row 2", got)
    assert str(error.expected).startswith(expected)


def test_a_chat_needs_a_prompt_to_ask_and_any_pair_two_answers() -> None:
    with pytest.raises(DataError) as caught:
        pairs_of([{"chosen": "q x", "rejected": "q y"}], as_chat=True)
    assert str(caught.value.where).startswith("the evaluation rows, row 1")
    with pytest.raises(DataError) as caught:
        pairs_of([{"prompt": "q", "chosen": "x", "rejceted": "y"}])
    error = caught.value
    assert (error.where, error.got) == ("the evaluation rows", "columns prompt, chosen, rejceted")
    assert error.hint == "rejceted"
    assert str(error.expected).startswith("prompt, chosen, rejected; or")
