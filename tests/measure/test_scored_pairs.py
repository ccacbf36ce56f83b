"""Scored pairs: which order they are in, and how a row is taken apart into prompt and answers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rlhf_cli.measure.scored_pairs import ScoredPair, texts_of


def pair(**values: Any) -> ScoredPair:
    given = {"step": 1, "row": 1, "prompt": "p", "chosen": "c", "rejected": "r", "margin": None}
    return ScoredPair(**{**given, "score_chosen": 1.0, "score_rejected": 0.0, **values})


@pytest.mark.parametrize(
    ("chosen", "rejected", "verdict"),
    [(1.0, 0.5, "right"), (0.5, 1.0, "wrong"), (0.5, 0.5, "tie"), (math.nan, 0.5, "wrong")],
)
def test_verdict(chosen: float, rejected: float, verdict: str) -> None:
    assert pair(score_chosen=chosen, score_rejected=rejected).verdict == verdict


def test_a_row_of_ids_is_split_where_the_answers_part() -> None:
    row = {"chosen_ids": [1, 2, 3], "rejected_ids": [1, 4]}
    text = {1: "2+2=", 2: "4", 3: "!", 4: "5"}
    assert texts_of(row, lambda ids, **_: "".join(text[token] for token in ids)) == ("2+2=", "4!", "5")


def decoded(ids: list[int], *, skip_special_tokens: bool) -> str:
    assert skip_special_tokens
    return "".join({1: "2+2=", 2: "4", 3: "!", 4: "5"}[token] for token in ids)


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        ("2+", ("2+", "2=4!", "2=5")),  # the row's own prompt, where both begin with it
        ("2+2=4", ("2+2=", "4!", "5")),
        ("2+2=5", ("2+2=", "4!", "5")),
        (None, ("2+2=", "4!", "5")),
        (7, ("2+2=", "4!", "5")),
        ([], ("2+2=", "4!", "5")),
        (["2+"], ("2+2=", "4!", "5")),  # a list, and not of messages
    ],
)
def test_the_prompt_of_ids(prompt: object, found: tuple[str, str, str]) -> None:
    row = {"chosen_ids": [1, 2, 3], "rejected_ids": [1, 4], "prompt": prompt, "chosen": "other", "rejected": "texts"}
    assert texts_of(row, decoded) == found


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


def test_where_one_side_is_no_conversation_the_ids_are_read() -> None:
    row = {"chosen_ids": [1, 2], "rejected_ids": [1, 4], "chosen": said("x"), "rejected": "y"}
    assert texts_of(row, decoded) == ("2+2=", "4", "5")
