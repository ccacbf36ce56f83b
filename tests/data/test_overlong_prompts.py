"""Prompts that leave no room for an answer; here every word is a token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from datasets import Dataset

from rlhf_cli.data.overlong_prompts import overlong_in, prompt_limit, without_overlong
from rlhf_cli.errors import ConfigError, DataError

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


@pytest.mark.parametrize(
    ("read", "served", "completion", "expected"),
    [
        (10, None, 4, 6), (10, 8, 4, 4), (8, 10, 4, 4), (None, 8, 7, 1), (None, None, 4, None),
        (10, None, None, 9), (10, None, 0, 9), (10, None, "4", 9), (0, -1, 4, None), (10, "8", 4, 6),
    ],
)  # fmt: skip
def test_what_the_completion_leaves_of_the_context(
    read: object, served: object, completion: object, expected: int | None
) -> None:
    """The shorter of two contexts less the completion, for which an unknown length leaves one token."""
    assert prompt_limit(read, served, completion, where="here") == expected


@pytest.mark.parametrize("completion", [10, 11])
def test_a_completion_that_fills_the_context_is_refused(completion: int) -> None:
    with pytest.raises(ConfigError) as caught:
        prompt_limit(10, None, completion, where="here")
    assert (caught.value.where, caught.value.hint) == ("here", "trainer.args.max_completion_length=5")


def test_rows_are_found_beyond_the_first_batch() -> None:
    rows = Dataset.from_dict({"prompt": ["a"] * 1999 + ["b b b"] + ["a"] * 5})
    assert overlong_in(rows, 2, longer_than) == {1999: 3}


@pytest.mark.fault(43)
def test_by_default_they_are_refused_with_their_rows() -> None:
    with pytest.raises(DataError) as caught:
        fitted("error")
    assert caught.value.where == "data, rows 2, 4 (the first row is 1)"
    assert str(caught.value.got).startswith("2 of 4 ")


@pytest.mark.fault(43)
def test_they_are_dropped_or_truncated() -> None:
    assert fitted("drop")[:] == {"prompt": ["a", "c c"], "answer": [1, 3]}
    assert fitted("truncate")[:] == {"prompt": ["a", "b b", "c c", "d d"], "answer": [1, 2, 3, 4]}


def test_dropping_every_prompt_is_refused() -> None:
    with pytest.raises(DataError) as caught:
        fitted("drop", ROWS.select([1, 3]))
    assert caught.value.where == "data"


def test_a_conversation_is_not_cut() -> None:
    rows = Dataset.from_dict({"prompt": [[{"role": "user", "content": "long"}]]})
    with pytest.raises(DataError) as caught:
        without_overlong(rows, {0: 3}, 2, policy="truncate", last=last)
    assert caught.value.hint == "data.overlong_prompts=drop"
