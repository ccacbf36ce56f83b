"""Preference rows of every shape as pairs: texts, messages, whole transcripts, and what is no pair."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_cli.errors import DataError
from rlhf_cli.measure.scored_pairs import pairs_of

USER, GOOD, BAD = [
    {"role": role, "content": text} for role, text in (("user", "q"), ("assistant", "x"), ("assistant", "y"))
]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"prompt": [USER], "chosen": "x", "rejected": "y"},
    ],
)
def test_conversations(row: dict[str, Any]) -> None:
    pairs = pairs_of([row])
    assert (pairs.prompts, pairs.chosen, pairs.rejected) == ([[USER]], [[GOOD]], [[BAD]])


def test_transcripts_part_where_they_differ_first() -> None:
    """Three messages shared, then answers of different lengths; of one that goes on from the other all is shared."""
    before = [USER, GOOD, USER]
    for chosen, rejected in (([GOOD], [BAD]), ([GOOD, USER, BAD], [BAD]), ([BAD], [GOOD, USER]), ([], [BAD, USER])):
        pairs = pairs_of([{"chosen": before + chosen, "rejected": before + rejected}])
        assert (pairs.prompts, pairs.chosen, pairs.rejected) == ([before], [chosen], [rejected])


def test_plain_texts() -> None:
    rows: list[dict[str, object]] = [
        {"chosen": "q x", "rejected": "q y"},
        {"prompt": "q", "chosen": "x", "rejected": "y"},
    ]
    pairs = pairs_of(rows)
    assert (pairs.prompts, pairs.chosen, pairs.rejected) == (["", "q"], ["q x", "x"], ["q y", "y"])
    chat = pairs_of(rows[1:], as_chat=True)
    assert (chat.prompts, chat.chosen, chat.rejected) == ([[USER]], [[GOOD]], [[BAD]])


@pytest.mark.parametrize(
    ("row", "got", "expected"),
    [
        ({"prompt": "q", "chosen": None, "rejected": "y"}, "str, NoneType, str", "something on both sides"),
        ({"prompt": "q", "chosen": "x", "rejected": ""}, "str, str, str", "something on both sides"),
        ({"prompt": "q", "chosen": "x", "rejected": [BAD]}, "str, str, list", "text on both sides, or a list"),
        ({"prompt": "q", "chosen": [GOOD], "rejected": "y"}, "str, list, str", "text on both sides, or a list"),
        ({"prompt": 5, "chosen": "x", "rejected": "y"}, "int, str, str", "text on both sides, or a list"),
        ({"prompt": None, "chosen": [GOOD], "rejected": "y"}, "NoneType, list, str", "text on both sides, or a list"),
        ({"prompt": [USER], "chosen": [GOOD], "rejected": "y"}, "list, list, str", "text on both sides, or a list"),
        ({"prompt": [USER], "chosen": "x", "rejected": [BAD]}, "list, str, list", "text on both sides, or a list"),
        ({"prompt": "q", "chosen": [USER, GOOD], "rejected": [USER, BAD]}, "str, list, list", "text on both sides, or"),
        ({"prompt": [], "chosen": [GOOD], "rejected": [BAD]}, "list, list, list", "text on both sides, or a list"),
        ({"chosen": [GOOD], "rejected": [BAD]}, "NoneType, list, list", "transcripts that begin with the same message"),
    ],
)
def test_what_is_no_pair(row: dict[str, Any], got: str, expected: str) -> None:
    with pytest.raises(DataError, match="this is no pair") as caught:
        pairs_of([{"prompt": "q", "chosen": "x", "rejected": "y"}, row])
    error = caught.value
    kinds = [kind.split(": ")[1] for kind in str(error.got).split(", ")]
    assert (error.where, ", ".join(kinds)) == ("the evaluation rows, row 2", got)
    assert str(error.expected).startswith(expected)


def test_a_chat_needs_a_prompt_to_ask() -> None:
    with pytest.raises(DataError) as caught:
        pairs_of([{"chosen": "q x", "rejected": "q y"}], as_chat=True)
    assert str(caught.value.expected).startswith("a prompt of its own")


def test_rows_without_an_answer_are_no_preference_rows() -> None:
    with pytest.raises(DataError, match="there is no column 'rejected'") as caught:
        pairs_of([{"prompt": "q", "chosen": "x", "rejceted": "y"}])
    error = caught.value
    assert (error.where, error.got) == ("the evaluation rows", "columns prompt, chosen, rejceted")
    assert error.hint == "rejceted"
    assert str(error.expected).startswith("prompt, chosen, rejected; or")
