"""Preference rows of every shape as pairs: texts, messages, whole transcripts, and what is no pair."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_cli.errors import DataError
from rlhf_cli.measure.preference_pairs import pairs_of

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


def test_plain_texts() -> None:
    pairs = pairs_of([{"chosen": "q x", "rejected": "q y"}])
    assert (pairs.prompts, pairs.chosen, pairs.rejected) == ([""], ["q x"], ["q y"])
    chat = pairs_of([{"prompt": "q:", "chosen": "x", "rejected": "y"}], as_chat=True)
    assert chat.prompts == [[{"role": "user", "content": "q:"}]]
    assert chat.chosen == [[GOOD]]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "q", "chosen": None, "rejected": "y"},
        {"prompt": "q", "chosen": "x", "rejected": [BAD]},
        {"chosen": [GOOD], "rejected": [BAD]},
        {"prompt": "q", "completion": "x"},
    ],
)
def test_what_is_no_pair(row: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"no pair|no column"):
        pairs_of([row])
