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
