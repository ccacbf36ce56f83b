"""Prompts that an evaluation shares with the training, for every kind of column."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_cli.data.rows import RowTable, hold_out_places, prompt_keys, shared_prompts


def message(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def table(*rows: dict[str, Any]) -> RowTable:
    return RowTable(rows, list(dict.fromkeys(name for row in rows for name in row)))


def shared(held_out: RowTable, *training: RowTable) -> int:
    found = shared_prompts(held_out, training)
    return sum(key in found for key in prompt_keys(held_out))


ASKED, OTHER = [message("user", "1+1?")], [message("user", "1+2?")]
YES, NO = message("assistant", "2"), message("assistant", "who knows")
SAME = {
    "text": ({"prompt": "1+1="}, {"prompt": "1+1="}, {"prompt": "1+2="}),
    "messages": ({"prompt": ASKED}, {"prompt": ASKED}, {"prompt": OTHER}),
    "another answer": (
        {"prompt": "1+1=", "completion": "2"},
        {"prompt": "1+1=", "completion": "3"},
        {"prompt": "1+2=", "completion": "2"},
    ),
    "dialogues": ({"messages": [*ASKED, YES]}, {"messages": [*ASKED, NO]}, {"messages": [*OTHER, YES]}),
    "pairs of transcripts": (
        {"chosen": [*ASKED, YES], "rejected": [*ASKED, NO]},
        {"chosen": [*ASKED, NO], "rejected": [*ASKED, YES]},
        {"chosen": [*OTHER, YES], "rejected": [*OTHER, NO]},
    ),
    "a prompt of its own, and in the transcripts": (
        {"prompt": ASKED, "chosen": [YES], "rejected": [NO]},
        {"chosen": [*ASKED, YES], "rejected": [*ASKED, NO]},
        {"chosen": [*OTHER, YES], "rejected": [*OTHER, NO]},
    ),
    "pairs of texts": (
        {"chosen": "Q: 1+1? 2", "rejected": "Q: 1+1? 3"},
        {"chosen": "Q: 1+1? 2", "rejected": "Q: 1+1? 3"},
        {"chosen": "Q: 1+1? 2", "rejected": "Q: 1+1? 4"},
    ),
    "pairs of token ids": (
        {"chosen_ids": [5, 6, 7], "rejected_ids": [5, 6, 8]},
        {"chosen_ids": [5, 6, 7], "rejected_ids": [5, 6, 8]},
        {"chosen_ids": [5, 6, 7], "rejected_ids": [5, 6, 9]},
    ),
    "plain text": ({"text": "1+1=2"}, {"text": "1+1=2"}, {"text": "1+1=3"}),
}


@pytest.mark.parametrize("name", SAME)
def test_equal_prompts_are_found(name: str) -> None:
    trained, same, other = SAME[name]
    assert shared(table(same), table(trained)) == 1
    assert shared(table(other), table(trained)) == 0
    assert shared(table(same, other, same), table(other), table(trained)) == 3, "rows are counted, over all sources"


def test_only_prompts_that_are_held_out_are_shared() -> None:
    held_out, training = table({"prompt": "1+1="}), table({"prompt": "1+1="}, {"prompt": "1+2="})
    assert shared_prompts(held_out, [training]) == set(prompt_keys(held_out))


def test_rows_without_a_prompt_have_no_key() -> None:
    assert list(prompt_keys(table({"body": "a"}, {"body": "b"}))) == [None, None]


def test_the_prompt_of_two_equal_dialogues_is_all_but_the_answer() -> None:
    same, different = [{"chosen": [*ASKED, YES], "rejected": [*ASKED, answer]} for answer in (YES, NO)]
    assert list(prompt_keys(table(same))) == list(prompt_keys(table(different)))


def test_a_fraction_keeps_the_dialogues_of_one_prompt_together() -> None:
    """Four prompts, five dialogues each: training and held-out rows share no prompt."""
    rows = [
        {"messages": [message("user", f"{number % 4}?"), message("assistant", str(number))]} for number in range(20)
    ]
    train, held = hold_out_places(table(*rows), 0.25, seed=3)
    assert len(held) == 5
    assert {rows[place]["messages"][0]["content"] for place in train}.isdisjoint(
        rows[place]["messages"][0]["content"] for place in held
    )
