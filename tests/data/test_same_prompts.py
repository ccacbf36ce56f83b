"""Prompts that an evaluation shares with the training, for every kind of column."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from rlhf_cli.data.rows import RowTable, describe_shared, hold_out_places, prompt_key, prompt_keys, shared_prompts


def message(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def table(*rows: dict[str, Any]) -> RowTable:
    return RowTable(rows, list(dict.fromkeys(name for row in rows for name in row)))


def shared(held_out: RowTable, *training: RowTable) -> int:
    found = shared_prompts(held_out, training)
    return sum(key in found for key in prompt_keys(held_out))


ASKED, OTHER = [message("user", "1+1?")], [message("user", "1+2?")]
YES, NO = message("assistant", "2"), message("assistant", "who knows")


def pair(chosen: Any, rejected: Any, **more: Any) -> dict[str, Any]:
    return {"chosen": chosen, "rejected": rejected, **more}


def ids(*last: int) -> dict[str, Any]:
    return {f"{name}_ids": [5, 6, token] for name, token in zip(("chosen", "rejected"), last, strict=True)}


OTHERS = pair([*OTHER, YES], [*OTHER, NO])
SAME = {
    "text": ({"prompt": "1+1="}, {"prompt": "1+1="}, {"prompt": "1+2="}),
    "another answer": tuple({"prompt": f"1+{n}=", "completion": said} for n, said in ((1, "2"), (1, "3"), (2, "2"))),
    "dialogues": ({"messages": [*ASKED, YES]}, {"messages": [*ASKED, NO]}, {"messages": [*OTHER, YES]}),
    "pairs of transcripts": (pair([*ASKED, YES], [*ASKED, NO]), pair([*ASKED, NO], [*ASKED, YES]), OTHERS),
    "a prompt of its own, and in the transcripts": (
        *(pair([YES], [NO], prompt=ASKED), pair([*ASKED, YES], [*ASKED, NO]), OTHERS),
    ),
    "a pair whose rejected answer is missing": (pair([*ASKED, YES], [*ASKED, NO]), pair([*ASKED, YES], []), OTHERS),
    "pairs of token ids": (ids(7, 8), ids(7, 8), ids(7, 9)),
    "plain text": ({"text": "1+1=2"}, {"text": "1+1=2"}, {"text": "1+1=3"}),
}


@pytest.mark.parametrize("name", SAME)
def test_equal_prompts_are_found(name: str) -> None:
    trained, same, other = SAME[name]
    assert shared(table(same), table(trained)) == 1
    assert shared(table(other), table(trained)) == 0
    assert shared(table(same, other, same), table(other), table(trained)) == 3, "rows are counted, over all sources"


@pytest.mark.parametrize(
    ("row", "same"),
    [
        ({"text": "t", "x": 1}, {"text": "t", "x": 2}),
        ({"chosen": None, "rejected": "x", "text": "t"}, {"text": "t"}),
        ({"prompt": [{"role": "user", "content": "a"}]}, {"prompt": [{"content": "a", "role": "user"}]}),
        ({"prompt": date(2026, 1, 2)}, {"prompt": "2026-01-02"}),
        (pair([*ASKED, YES], [*ASKED, YES]), pair([*ASKED, YES], [*ASKED, NO])),
    ],
)
def test_the_prompt_of_a_row_counts_and_nothing_else(row: dict[str, Any], same: dict[str, Any]) -> None:
    assert prompt_key(row) == prompt_key(same) != prompt_key({"text": "u"})
    assert list(prompt_keys(table({"body": "a"}, {"body": "b"}))) == [None, None]


def test_only_prompts_that_are_held_out_are_shared() -> None:
    held_out, training = table({"prompt": "1+1="}), table({"prompt": "1+1="}, {"prompt": "1+2="})
    assert shared_prompts(held_out, [training]) == set(prompt_keys(held_out))
    assert [describe_shared(shared, 3).split(" evaluation")[0] for shared in (2, 3)] == ["2 of 3", "all 3"]


def test_a_fraction_keeps_the_dialogues_of_one_prompt_together() -> None:
    """Four prompts, five dialogues each: training and held-out rows share no prompt."""
    rows = [{"messages": [message("user", f"{at % 4}?"), message("assistant", str(at))]} for at in range(20)]
    train, held = hold_out_places(table(*rows), 0.25, seed=3)
    asked, held_out = ({rows[at]["messages"][0]["content"] for at in places} for places in (train, held))
    assert (len(held), len(asked), asked & held_out) == (5, 3, set())
