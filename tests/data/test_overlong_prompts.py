"""Prompts that leave no room for an answer, counted in a tokenizer whose tokens are words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from datasets import Dataset

from rlhf_cli.data.overlong_prompts import overlong_in, without_overlong
from rlhf_cli.errors import DataError

TEXTS = ["a", "b b b b", "c c", "d d d"]
ROWS = Dataset.from_dict({"prompt": TEXTS, "answer": [1, 2, 3, 4]})


def longer_than(limit: int, prompts: Sequence[object]) -> Mapping[int, int]:
    counted = [len(str(prompt).split()) for prompt in prompts]
    return {row: words for row, words in enumerate(counted) if words > limit}


def last(text: str, limit: int) -> str:
    return " ".join(text.split()[-limit:])


def fitted(policy, rows: Dataset = ROWS, limit: int = 2) -> Dataset:
    overlong = overlong_in(rows, limit, longer_than)
    return without_overlong(rows, overlong, limit, policy=policy, last=last)


def test_rows_are_found_beyond_the_first_batch() -> None:
    rows = Dataset.from_dict({"prompt": ["a"] * 1999 + ["b b b"] + ["a"] * 5})
    assert overlong_in(rows, 2, longer_than) == {1999: 3}


@pytest.mark.fault(43)
def test_by_default_they_are_refused_with_their_rows() -> None:
    with pytest.raises(DataError, match="more than 2 tokens") as caught:
        fitted("error")
    assert str(caught.value.where).startswith("data, rows 2, 4 ")
    assert caught.value.got == "2 of 4 prompts are longer, the longest has 4 tokens"


@pytest.mark.fault(43)
def test_they_are_left_out() -> None:
    assert fitted("drop")[:] == {"prompt": ["a", "c c"], "answer": [1, 3]}


@pytest.mark.fault(43)
def test_their_ends_stay() -> None:
    assert fitted("truncate")[:] == {"prompt": ["a", "b b", "c c", "d d"], "answer": [1, 2, 3, 4]}


def test_where_none_fits_nothing_is_left() -> None:
    with pytest.raises(DataError, match="every prompt has more than 2 tokens"):
        fitted("drop", ROWS.select([1, 3]))


def test_a_conversation_is_not_cut() -> None:
    rows = Dataset.from_dict({"prompt": [[{"role": "user", "content": "long"}]]})
    with pytest.raises(DataError, match="a conversation cannot be cut off"):
        without_overlong(rows, {0: 3}, 2, policy="truncate", last=last)
