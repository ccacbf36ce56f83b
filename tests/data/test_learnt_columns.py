"""Which columns a trainer learns from, which rows it refuses, and whole dialogues split into prompt and answers."""

from __future__ import annotations

from typing import Any

import datasets
import pytest

from rlhf_cli.data.dialogues import split_pair, split_row, split_transcripts
from rlhf_cli.data.learnt_columns import check_columns, learnt_columns, only_learnt
from rlhf_cli.data.loading import load_split
from rlhf_cli.data.peeking import peek, prepare_preview
from rlhf_cli.data.rows import RowTable, hold_out_places, is_empty, refuse_no_text
from rlhf_cli.data.source import DataSource
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
def test_a_trainer_reads_the_first_complete_set_and_the_columns_beside_it(
    trainer: str, columns: str, expected: list[str]
) -> None:
    values: dict[str, Any] = {"messages": CHAT, "label": True, "input_ids": [1], "labels": [1], "margin": 1.0}
    values |= {"tools": [{"name": "f"}], "chat_template_kwargs": {"a": 1}}
    row = {name: values.get(name, f"a {name}") for name in columns.split()}
    assert check_columns(RowTable([row] * 2, list(row)), OF[trainer]) == expected
    dataset = datasets.Dataset.from_list([row] * 2)
    assert only_learnt(dataset, OF[trainer]).to_list() == [{name: row[name] for name in expected}] * 2


@pytest.mark.parametrize(
    ("trainer", "columns", "hint"),
    [
        ("DPO", ("chosen", "loser"), "data.rename.rejected=loser"),
        ("KTO", ("prompt", "response", "liked"), "data.rename.completion=response data.rename.label=liked"),
        ("SFT", ("instruction", "completion"),
         "data.rename.prompt=instruction, or trainer.args.dataset_text_field=COLUMN"),
        ("DPO", ("messages", "rejected_response"),
         "data.rename.chosen=messages data.rename.rejected=rejected_response data.transcripts=true"),
        ("DPO", ("chosen", "rejectd"), "data.rename.rejected=rejectd"),
        ("DPO", ("chosen", "zzz"), "data.rename.rejected=EXISTING_COLUMN"),
        ("DPO", ("zzz",), "data.rename.chosen=EXISTING_COLUMN data.rename.rejected=EXISTING_COLUMN"),
    ],
)  # fmt: skip
def test_an_incomplete_set_is_refused_with_the_renames_to_type(
    trainer: str, columns: tuple[str, ...], hint: str, refusal
) -> None:
    error = refusal(learnt_columns, OF[trainer], columns)
    assert (error.where, error.hint) == ("data", hint)


@pytest.mark.parametrize(
    ("columns", "twins"),
    [
        ("prompt response_0 response_1 better_response_id", ("response_0", "response_1")),
        ("model_a model_b winner conversation_a conversation_b", ("conversation_a", "conversation_b")),
        ("score_A score_B human_ref_A human_ref_B", ("human_ref_A", "human_ref_B")),
        ("answer1 answer2 score1 score2", ("answer1", "answer2")),
    ],
)
def test_a_third_column_may_say_which_answer_is_better(columns: str, twins: tuple[str, str], refusal) -> None:
    """A rename is right only if the first answer always is, so it is no command to type."""
    for trainer in ("DPO", "Reward"):
        error = refusal(learnt_columns, OF[trainer], columns.split())
        renames = f"data.rename.chosen={twins[0]} data.rename.rejected={twins[1]}"
        assert (error.hint, error.advice.endswith(renames)) == (None, True)
    assert "data.rename.chosen" in refusal(learnt_columns, OF["DPO"], ["x_1", "x_3", "abc", "abd", "", "a", "b"]).hint


def test_the_column_of_plain_text_can_have_another_name(refusal) -> None:
    assert learnt_columns(OF["SFT"], ("body", "text"), text_field="body") == ("body",)
    assert "body" in refusal(learnt_columns, OF["SFT"], ("x",), text_field="body", name="data.eval").expected


@pytest.mark.parametrize(
    ("trainer", "row", "where", "got"),
    [
        ("KTO", {"prompt": "p", "completion": "c", "label": 2}, "data, row 2 (the first row is 1)", "2"),
        ("KTO", {"prompt": "p", "completion": "c", "label": None}, "data, row 2 (the first row is 1)", "None"),
        ("KTO", {"prompt": "p", "completion": " ", "label": True}, "data, row 2 (the first row is 1)", "' '"),
        ("DPO", {"chosen": "c", "rejected": ""}, "data, row 1 (the first row is 1)", "''"),
        (
            "Reward",
            {"chosen": "c", "rejected": "r", "prompt": CHAT[:1]},
            "data",
            "rejected is text, prompt is messages",
        ),
        ("Reward", {"chosen": CHAT[1:], "rejected": CHAT[1:], "prompt": "p"}, "data", "prompt is text"),
        ("DPO", {"chosen": CHAT, "rejected": "r", "prompt": "p"}, "data", "rejected is text"),
        ("DPO", {"chosen": [1, 2], "rejected": [1, 3]}, "data", "[1, 2] (list)"),
    ],
)
def test_rows_that_make_trl_fail_are_refused(trainer: str, row: dict[str, Any], where: str, got: str, refusal) -> None:
    rows = [*([{"prompt": "p", "completion": "c", "label": 1}] if trainer == "KTO" else []), row]
    error = refusal(check_columns, RowTable(rows, list(row)), OF[trainer])
    assert error.where == where
    assert got in error.got


@pytest.mark.parametrize(
    ("source", "prompt"),
    [
        (DataSource(path="rows.jsonl"), None),
        (DataSource(path="rows.jsonl", rename={"question": "q"}, select=3), "Q: {question}"),
        (DataSource(path="rows.jsonl", rename={"chosen": "a", "rejected": "b"}, select=(1, 4), transcripts=True), None),
        (DataSource(path="rows.jsonl", split="train"), "{q}"),
    ],
)
def test_previewed_rows_are_prepared_like_training_rows(source: DataSource, prompt: str | None, jsonl) -> None:
    start = "\n\nHuman: x\n\nAssistant:"
    jsonl([{"q": f"q{n}", "a": f"{start} a{n}", "b": f"{start} b{n}"} for n in range(5)])
    expected = load_split([source], prompt=prompt, seed=0)
    columns, found = prepare_preview(source, peek(source), prompt)
    assert list(columns) == expected.column_names
    assert found is not None
    assert [found[row] for row in range(len(found))] == expected.to_list()


@pytest.mark.parametrize(("fraction", "held"), [(0.1, 1), (0.25, 2), (0.74, 7), (0.95, None), (0.04, None)])
def test_a_fraction_of_ten_prompts_is_held_out(fraction: float, held: int | None, refusal) -> None:
    """The number is rounded, a half to the even number; none and all are refused."""
    table = RowTable([{"prompt": str(n)} for n in range(10)], ["prompt"])
    if held is None:
        assert refusal(hold_out_places, table, fraction, 0).where == "data.eval"
        return
    train, out = hold_out_places(table, fraction, 0)
    assert (len(out), sorted(train + out)) == (held, list(range(10)))
    assert out == sorted(out)


def test_who_reads_tool_calls(refusal) -> None:
    """Trainers that generate format the prompt with its tool calls, and so does SFT; ORPO does not."""
    called = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": {}}}]}
    chat = [{"role": "user", "content": "1+1?"}, called, {"role": "tool", "content": "2"}]
    said = [{"role": "assistant", "content": "2"}]
    assert check_columns(RowTable([{"prompt": chat}], ["prompt"]), OF["GRPO"]) == ["prompt"]
    whole = {"messages": [*chat, *said]}
    assert check_columns(RowTable([whole], list(whole)), OF["SFT"]) == ["messages"]
    pair = {"prompt": chat, "chosen": said, "rejected": [{"role": "assistant", "content": "3"}]}
    assert (
        refusal(check_columns, RowTable([pair], list(pair)), TRAINERS["ORPOTrainer"]).where
        == "data, row 1 (the first row is 1)"
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", True), (" \n", True), (None, True), ([], True), ([{"role": "a"}], True), ([None, ""], True),
        ("x", False), (0, False), (False, False), ([1], False), ([{"content": ""}, {"content": "x"}], False),
        ([{"content": [{"type": "image", "content": "x"}]}], False), ({"content": ""}, False),
    ],
)  # fmt: skip
def test_empty_values(value: object, expected: bool) -> None:
    assert is_empty(value) is expected


def test_a_prompt_is_text_or_messages(refusal) -> None:
    assert refuse_no_text("x", "text", "data") == "text"
    assert refuse_no_text("x", CHAT, "data") == "messages"
    for value in (3, {"role": "user"}, [{"content": "x"}], ["x"]):
        assert "data.rename.x=COLUMN" in refusal(refuse_no_text, "x", value, "data").advice
    check_columns(RowTable([{"prompt": "p"}], ["prompt"]), OF["GRPO"])
    error = refusal(check_columns, RowTable([{"prompt": 3}], ["prompt"]), OF["GRPO"])
    assert "data.prompt='{prompt}'" in error.advice


def test_a_row_without_transcripts_keeps_its_texts_and_gets_an_empty_prompt(refusal) -> None:
    start = "\n\nHuman: x\n\nAssistant:"
    pair = {"chosen": f"{start} a", "rejected": f"{start} b"}
    assert split_row(pair) == {"prompt": start, "chosen": " a", "rejected": " b"}
    for chosen, rejected in ((None, f"{start} b"), (CHAT, CHAT)):
        row = {"chosen": chosen, "rejected": rejected}
        assert split_row(row) == {"prompt": "", **row}
    swift = {"chosen": CHAT, "rejected": "no"}
    told = [{"role": "assistant", "content": "no"}]
    assert split_row(swift) == {"prompt": CHAT[:-1], "chosen": CHAT[-1:], "rejected": told}
    many = datasets.Dataset.from_list([{"chosen": "a", "rejected": "b"}] * 1500 + [pair])
    assert split_transcripts(many)[1500]["prompt"] == start
    assert refusal(split_transcripts, many.select(range(1500))).hint == "data.transcripts=false"
    assert len(split_transcripts(many.select([]))) == 0


def test_a_transcript_is_split_at_the_last_answer() -> None:
    asked = "\n\nHuman: Hello\n\nAssistant: Hi!\n\nHuman: How are you?\n\nAssistant:"
    assert split_pair(asked + " Fine.", asked + " Go away.") == (asked, " Fine.", " Go away.")
    # The answers begin alike: it is the turn that ends the prompt, not the last letter in common.
    assert split_pair(asked + " I am fine.", asked + " I am not.") == (asked, " I am fine.", " I am not.")
    assert split_pair(asked + " Fine.", asked + " ") == (asked, " Fine.", " ")
    assert split_pair(asked + " Fine.", asked) == (asked, " Fine.", "")


def test_dialogues_that_differ_earlier_are_split_where_they_differ() -> None:
    asked = "\n\nHuman: Hello\n\nAssistant:"
    long = " Hi!\n\nHuman: Tea?\n\nAssistant: Yes."
    # One dialogue may continue after the other has ended: its later turns are no part of the prompt.
    for other in (" Ho!\n\nHuman: Tea?\n\nAssistant: No.", " Hi!"):
        assert split_pair(asked + long, asked + other) == (asked, long, other)
        assert split_pair(asked + other, asked + long) == (asked, other, long)


@pytest.mark.parametrize(
    ("chosen", "rejected"),
    [
        ("Fine.", "Go away."),
        ("\n\nHuman: Hello\n\nAssistant: Hi!", "Hi!"),
        ("\n\nHuman: Hello\n\nAssistant: Hi!", "\n\nHuman: Bye\n\nAssistant: Hi!"),
        ("\n\nHuman: Hello", "\n\nHuman: Hello"),
        ("I said \n\nAssistant: once", "I said \n\nAssistant: twice"),
    ],
)
def test_texts_that_are_no_pair_of_transcripts_are_not_split(chosen: str, rejected: str) -> None:
    assert split_pair(chosen, rejected) is None


def test_loading_splits_and_templates_can_read_the_prompt(jsonl) -> None:
    asked = "\n\nHuman: Hello\n\nAssistant:"
    path = jsonl([{"chosen": asked + " a", "rejected": asked + " b"}, {"chosen": "c", "rejected": "d"}])
    dataset = load_split([DataSource(path=path, transcripts=True)], seed=0)
    assert dataset.to_list() == [
        {"chosen": " a", "rejected": " b", "prompt": asked},
        {"chosen": "c", "rejected": "d", "prompt": ""},
    ]
    templated = load_split([DataSource(path=path, transcripts=True)], seed=0, prompt="<{prompt}>")
    assert templated["prompt"][0] == f"<{asked}>"
    assert "prompt" not in load_split([DataSource(path=path)], seed=0).column_names


def test_data_with_prompts_is_not_split(jsonl) -> None:
    rows = [{"prompt": "p", "chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: a\n\nAssistant: c"}]
    source = DataSource(path=jsonl(rows))
    assert load_split([source], seed=0).to_list() == rows
    assert prepare_preview(source, peek(source), None)[0] == ("prompt", "chosen", "rejected")
