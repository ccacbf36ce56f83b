"""The columns of a file are identified by their names and types, never guessed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_cli.errors import DataError
from rlhf_cli.project.own_rows import TRAININGS, OwnRows, read_own_rows

Write = Callable[[str, str], Path]


def looked_at(write: Write, trains: str, row: dict[str, object], **typed: str) -> OwnRows:
    write("rows.jsonl", json.dumps(row) + "\n")
    return read_own_rows("rows.jsonl", TRAININGS[trains], typed)


@pytest.mark.parametrize(
    ("trains", "row", "rename"),
    [
        ("grpo", {"question": "a", "solution": 3}, {"prompt": "question", "answer": "solution"}),
        # GSM8K on the hub.
        ("grpo", {"question": "a", "answer": "#### 2"}, {"prompt": "question"}),
        # Upper and lower case are equal, and a number cannot be a prompt.
        ("grpo", {"Prompt": 7, "Question": "a", "Final Answer": "b"}, {"prompt": "Question", "answer": "Final Answer"}),
        # Alpaca; pairs; single answers, whose `label` must be true or false.
        ("sft", {"instruction": "a", "output": "b"}, {"prompt": "instruction", "completion": "output"}),
        ("dpo", {"chosen": "b", "rejected": "c"}, {}),
        ("dpo", {"preferred_output": "b", "Loser": "c"}, {"chosen": "preferred_output", "rejected": "Loser"}),
        ("grpo", {"prompt": "a", "solution": "b", "ground_truth": "c"}, {"answer": "ground_truth"}),
        ("kto", {"prompt": "a", "answer": "b", "label": "x", "good": True}, {"completion": "answer", "label": "good"}),
        ("sft", {"query": "a", "answers": "[]", "tools": "[]"}, {"completion": "answers"}),  # xLAM: the prompt is made
        # Columns that TRL reads without renaming.
        ("sft", {"messages": [{"role": "user", "content": "a"}]}, {}),
        ("kto", {"prompt": "a", "chosen": "b", "rejected": "c"}, {}),
    ],
)
def test_columns_are_identified_by_name_and_type(
    write: Write, trains: str, row: dict[str, object], rename: dict[str, str]
) -> None:
    assert looked_at(write, trains, row).rename == rename


def test_a_typed_column_is_used_and_one_of_two_kinds_matters_only_then(write: Write) -> None:
    found = looked_at(write, "sft", {"prompt": "a", "question": "b"}, completion="prompt")
    assert found.rename == {"prompt": "question", "completion": "prompt"}
    rows = [{"prompt": "a", "answer": "b", "meta": meta} for meta in ("x", 1)]
    write("rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert read_own_rows("rows.jsonl", TRAININGS["grpo"], {}).rename == {}
    with pytest.raises(DataError) as caught:
        read_own_rows("rows.jsonl", TRAININGS["grpo"], {"answer": "meta"})
    assert caught.value.where == "rows.jsonl:2"


def test_an_ambiguous_or_missing_column_is_refused(write: Write) -> None:
    with pytest.raises(DataError, match="which column is the prompt") as wrong:
        looked_at(write, "grpo", {"question text": "a", "question title": "b"})
    assert wrong.value.got == "columns question text (text), question title (text)"
    assert wrong.value.hint == "--column prompt=NAME"
    for typed, said in (({"prompt": "c"}, "no column 'c'"), ({"chosen": "a"}, "grpo reads no column 'chosen'")):
        with pytest.raises(DataError, match=said):
            looked_at(write, "grpo", {"a": "x"}, **typed)


@pytest.mark.parametrize(
    ("is_number", "answers"),
    [
        (True, ["22", 22, "She has 3 left.\n#### 1,234", "5.5 m"]),
        (False, ["Paris", "2 of them were in Paris and London", ""]),
    ],
)
def test_an_answer_that_ends_with_a_number_is_one(write: Write, is_number: bool, answers: list[object]) -> None:
    for answer in answers:
        assert looked_at(write, "grpo", {"prompt": "a", "answer": answer}).answer_is_number is is_number, answer
