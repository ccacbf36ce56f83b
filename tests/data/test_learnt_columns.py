"""What a trainer learns from, by the columns and the rows there are; tables of every sort, read alike."""

from __future__ import annotations

from typing import Any

import datasets
import pytest

from rlhf_cli.data.learnt_columns import check_columns, learnt_columns, only_learnt
from rlhf_cli.data.loading import load_split
from rlhf_cli.data.peeking import peek, prepared_rows
from rlhf_cli.data.rows import RowTable, hold_out_places, is_empty, refuse_no_text
from rlhf_cli.data.source import DataSource
from rlhf_cli.data.transcripts import split_row, split_transcripts
from rlhf_cli.tables.trl_trainers import TRAINERS

OF = {name: TRAINERS[f"{name}Trainer"] for name in ("SFT", "DPO", "KTO", "Reward", "GRPO")}
CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]


@pytest.mark.parametrize(
    ("trainer", "columns", "expected"),
    [
        ("SFT", "text other", ["text"]),
        ("SFT", "prompt completion text", ["prompt", "completion"]),
        ("SFT", "messages prompt tools labels", ["messages", "tools"]),
        ("SFT", "input_ids labels", ["input_ids", "labels"]),
        ("DPO", "prompt chosen rejected margin image other", ["chosen", "rejected", "prompt", "image"]),
        ("DPO", "rejected chosen", ["chosen", "rejected"]),
        ("Reward", "chosen rejected prompt margin labels", ["chosen", "rejected", "prompt", "margin"]),
        (
            "KTO",
            "prompt completion label chat_template_kwargs",
            ["prompt", "completion", "label", "chat_template_kwargs"],
        ),
    ],
)
def test_the_first_set_that_is_there_and_what_is_read_beside_it(
    trainer: str, columns: str, expected: list[str]
) -> None:
    values: dict[str, Any] = {"messages": CHAT, "label": True, "input_ids": [1], "labels": [1], "margin": 1.0}
    values |= {"tools": [{"name": "f"}], "chat_template_kwargs": {"a": 1}}
    row = {name: values.get(name, f"a {name}") for name in columns.split()}
    assert check_columns(RowTable([row] * 2, list(row)), OF[trainer]) == expected
    dataset = datasets.Dataset.from_list([row] * 2)
    assert only_learnt(dataset, OF[trainer]).to_list() == [{name: row[name] for name in expected}] * 2


@pytest.mark.parametrize(
    ("trainer", "columns", "missing", "hint"),
    [
        ("DPO", ("chosen", "loser"), "no column 'rejected'", "try:      data.rename.rejected=loser"),
        ("KTO", ("prompt", "response", "liked"), "no column 'completion' and no column 'label'",
         "data.rename.completion=response data.rename.label=liked"),
        ("SFT", ("instruction", "completion"), "no column 'prompt'",
         "data.rename.prompt=instruction, or trainer.args.dataset_text_field=COLUMN"),
        ("DPO", ("chosen", "rejectd"), "no column 'rejected'", "data.rename.rejected=rejectd"),
        ("DPO", ("chosen", "zzz"), "no column 'rejected'", "data.rename.rejected=EXISTING_COLUMN"),
        ("DPO", ("zzz",), "no column", "EXISTING_COLUMN"),
    ],
)  # fmt: skip
def test_a_set_that_is_not_complete(trainer: str, columns: tuple[str, ...], missing: str, hint: str, refusal) -> None:
    message = refusal(learnt_columns, OF[trainer], columns)
    assert missing in message
    assert hint in message
    assert ("dataset_text_field" in message) == (trainer == "SFT")


def test_the_column_of_plain_text_has_the_name_it_is_given(refusal) -> None:
    assert learnt_columns(OF["SFT"], ("body", "text"), text_field="body") == ("body",)
    assert "body" in refusal(learnt_columns, OF["SFT"], ("x",), text_field="body", name="data.eval")


@pytest.mark.parametrize(
    ("trainer", "row", "said"),
    [
        ("KTO", {"prompt": "p", "completion": "c", "label": 2}, "got:      2"),
        ("KTO", {"prompt": "p", "completion": "c", "label": None}, "got:      None"),
        ("KTO", {"prompt": "p", "completion": " ", "label": True}, "nothing in the column 'completion'"),
        ("DPO", {"chosen": "c", "rejected": ""}, "nothing in the column 'rejected'"),
        ("Reward", {"chosen": "c", "rejected": "r", "prompt": CHAT[:1]}, "rejected is text, prompt is messages"),
        ("Reward", {"chosen": CHAT[1:], "rejected": CHAT[1:], "prompt": "p"}, "makes messages of a text"),
        ("DPO", {"chosen": CHAT, "rejected": "r", "prompt": "p"}, "makes messages of a text"),
        ("DPO", {"chosen": [1, 2], "rejected": [1, 3]}, "neither text nor messages"),
    ],
)
def test_rows_over_which_trl_would_trip(trainer: str, row: dict[str, Any], said: str, refusal) -> None:
    sound = {"KTO": {"prompt": "p", "completion": "c", "label": 1}}.get(trainer)
    rows = [one for one in (sound, row) if one is not None]
    assert said in refusal(check_columns, RowTable(rows, list(row)), OF[trainer])


@pytest.mark.parametrize(
    ("source", "prompt"),
    [
        (DataSource(path="rows.jsonl"), None),
        (DataSource(path="rows.jsonl", rename={"question": "q"}, select=3), "Q: {question}"),
        (DataSource(path="rows.jsonl", rename={"chosen": "a", "rejected": "b"}, select=(1, 4), transcripts=True), None),
        (DataSource(path="rows.jsonl", split="train"), "{q}"),
    ],
)
def test_prepared_rows_are_those_of_a_training(source: DataSource, prompt: str | None, jsonl) -> None:
    start = "\n\nHuman: x\n\nAssistant:"
    jsonl([{"q": f"q{n}", "a": f"{start} a{n}", "b": f"{start} b{n}"} for n in range(5)])
    expected = load_split([source], prompt=prompt, seed=0)
    found = prepared_rows(source, peek(source), prompt, expected.column_names)
    assert found is not None
    assert [found[row] for row in range(len(found))] == expected.to_list()


@pytest.mark.parametrize(("fraction", "held"), [(0.1, 1), (0.25, 2), (0.74, 7), (0.95, None), (0.04, None)])
def test_so_many_are_held_out(fraction: float, held: int | None, refusal) -> None:
    """Of ten prompts: rounded, to the even number where it is a half; none and all are too few."""
    table = RowTable([{"prompt": str(n)} for n in range(10)], ["prompt"])
    if held is None:
        assert "too few prompts" in refusal(hold_out_places, table, fraction, 0)
        return
    train, out = hold_out_places(table, fraction, 0)
    assert (len(out), sorted(train + out)) == (held, list(range(10)))
    assert out == sorted(out)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", True), (" \n", True), (None, True), ([], True), ([{"role": "a"}], True), ([None, ""], True),
        ("x", False), (0, False), (False, False), ([1], False), ([{"content": ""}, {"content": "x"}], False),
        ([{"content": [{"type": "image", "content": "x"}]}], False), ({"content": ""}, False),
    ],
)  # fmt: skip
def test_what_is_nothing(value: object, expected: bool) -> None:
    assert is_empty(value) is expected


def test_a_prompt_is_text_or_messages(refusal) -> None:
    assert refuse_no_text("x", "text", "data") == "text"
    assert refuse_no_text("x", CHAT, "data") == "messages"
    for value in (3, {"role": "user"}, [{"content": "x"}], ["x"]):
        assert "neither text nor messages" in refusal(refuse_no_text, "x", value, "data")
    check_columns(RowTable([{"prompt": "p"}], ["prompt"]), OF["GRPO"])
    assert "data.prompt='{prompt}'" in refusal(check_columns, RowTable([{"prompt": 3}], ["prompt"]), OF["GRPO"])
    assert "data.rename.x=COLUMN" in refusal(refuse_no_text, "x", 3, "data")


def test_what_is_no_transcript_keeps_its_texts_and_has_no_prompt(refusal) -> None:
    start = "\n\nHuman: x\n\nAssistant:"
    pair = {"chosen": f"{start} a", "rejected": f"{start} b"}
    assert split_row(pair) == {"prompt": start, "chosen": " a", "rejected": " b"}
    for chosen, rejected in ((None, f"{start} b"), (CHAT, CHAT)):
        row = {"chosen": chosen, "rejected": rejected}
        assert split_row(row) == {"prompt": "", **row}
    many = datasets.Dataset.from_list([{"chosen": "a", "rejected": "b"}] * 1500 + [pair])
    assert split_transcripts(many)[1500]["prompt"] == start
    assert "none of these rows" in refusal(split_transcripts, many.select(range(1500)))
    assert len(split_transcripts(many.select([]))) == 0
