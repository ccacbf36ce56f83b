"""Which columns a trainer learns from, and which rows it refuses."""

from __future__ import annotations

import re
from typing import Any

import datasets
import pytest

from rlhf_cli.data.learnt_columns import check_columns, learnt_columns, only_learnt
from rlhf_cli.data.rows import RowTable
from rlhf_cli.tables.trl_trainers import TRAINERS

OF = {name.removesuffix("Trainer"): row for name, row in TRAINERS.items()}
TEXT_FIELD = ", or trainer.args.dataset_text_field=COLUMN"
XLAM = "data.prompt='[{role: user, content: \"{query}\"}]'"
CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]


@pytest.mark.parametrize(
    ("trainer", "columns", "expected"),
    [
        ("SFT", "prompt completion text", ["prompt", "completion"]),
        ("SFT", "messages prompt tools labels", ["messages", "tools"]),
        ("SFT", "input_ids labels", ["input_ids", "labels"]),
        ("DPO", "prompt chosen rejected margin image other", ["chosen", "rejected", "prompt", "image"]),
        ("Reward", "chosen rejected prompt margin labels", ["chosen", "rejected", "prompt", "margin"]),
        ("KTO", "prompt completion label chat_template_kwargs",
         ["prompt", "completion", "label", "chat_template_kwargs"]),
    ],
)  # fmt: skip
def test_a_trainer_reads_the_first_complete_set(trainer: str, columns: str, expected: list[str]) -> None:
    values: dict[str, Any] = {"messages": CHAT, "label": True, "input_ids": [1], "labels": [1], "margin": 1.0}
    values |= {"tools": [{"name": "f"}], "chat_template_kwargs": {"a": 1}}
    row = {name: values.get(name, f"a {name}") for name in columns.split()}
    assert check_columns(RowTable([row] * 2, list(row)), OF[trainer]) == expected
    dataset = datasets.Dataset.from_list([row] * 2)
    assert only_learnt(dataset, OF[trainer]).to_list() == [{name: row[name] for name in expected}] * 2


@pytest.mark.parametrize(
    ("trainer", "columns", "hint"),
    [
        ("KTO", ("prompt", "response", "liked"), "data.rename.completion=response data.rename.label=liked"),
        ("SFT", ("instruction", "completion", "input"), f"data.prompt='{{instruction}} {{input}}'{TEXT_FIELD}"),
        ("SFT", ("mesages",), f"data.rename.prompt=COLUMN data.rename.completion=COLUMN{TEXT_FIELD}"),
        ("SFT", ("query", "answers", "tools"), f"{XLAM} data.rename.completion=answers{TEXT_FIELD}"),
        ("SFT", ("conversation",), f"data.rename.messages=conversation{TEXT_FIELD}"),
        ("KTO", ("conversation", "liked"),
         "data.rename.messages=conversation data.transcripts=true data.rename.label=liked"),
        ("KTO", ("messages",), "data.transcripts=true"),
        ("KTO", ("prompt", "chosen"), "data.rename.rejected=COLUMN"),
        ("GKD", ("id",), "data.rename.messages=COLUMN"),
        ("GKD", ("prompt",), "trainer=distillation"),
        ("IWOPD", ("prompt", "completion"), "trainer=gold"),
        ("GOLD", ("question",), "trainer=distillation data.rename.prompt=question"),
        ("DPO", ("chosen", "loser", "question"), "data.rename.rejected=loser data.rename.prompt=question"),
        ("DPO", ("chosen", "loser", "prompt", "question"), "data.rename.rejected=loser"),
        ("DPO", ("chosen", "loser", "promt"), "data.rename.rejected=loser"),
        ("DPO", ("messages", "rejectd"), "data.rename.chosen=COLUMN data.rename.rejected=rejectd"),
        ("DPO", ("messages", "rejected_response"),
         "data.rename.chosen=messages data.rename.rejected=rejected_response data.transcripts=true"),
    ],
)  # fmt: skip
def test_an_incomplete_set_is_refused_with_renames(trainer: str, columns: tuple[str, ...], hint: str, refusal) -> None:
    error = refusal(learnt_columns, OF[trainer], columns)
    typed, _, needed = error.hint.partition("  # no column looks like ")
    assert (error.where, typed, error.got) == ("data", hint, f"columns {', '.join(columns)}")
    assert bool(needed) == ("=COLUMN" in hint.removesuffix(TEXT_FIELD))
    assert "," in error.expected or "messages" in error.expected


@pytest.mark.parametrize(("trainer", "is_read"), [("DPO", False), ("ORPO", False), ("Reward", True)])
def test_token_ids_are_no_texts(trainer: str, is_read: bool, refusal) -> None:
    error = refusal(learnt_columns, OF[trainer], ("prompt_input_ids", "chosen_input_ids", "rejected_input_ids"))
    renames = "data.rename.chosen_ids=chosen_input_ids data.rename.rejected_ids=rejected_input_ids"
    assert (error.hint, error.advice is None) == (renames if is_read else None, is_read)


@pytest.mark.parametrize(
    ("trainer", "row", "hint"),
    [
        ("SFT", {"id": 1, "body": {"messages": CHAT}}, "data.rename.messages=body.messages"),
        ("DPO", {"prompt": "p", "chosen": "c", "x": {"loser": "r"}}, "data.rename.rejected=x.loser"),
        (
            "SFT",
            {"e": '{"question": "q", "answer": "a"}'},
            "data.rename.prompt=e.question data.rename.completion=e.answer",
        ),
        ("SFT", {"x": {"y": 1}, "z": "{"}, "data.rename.prompt=COLUMN data.rename.completion=COLUMN"),
    ],
)
def test_a_missing_column_may_lie_inside_another(trainer: str, row: dict[str, Any], hint: str, refusal) -> None:
    for error in (
        refusal(learnt_columns, OF[trainer], [*row], first=row),
        refusal(check_columns, RowTable([row], [*row]), OF[trainer]),
    ):
        assert error.hint.split(", or")[0] == hint


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
        assert (error.where, error.hint, error.advice.endswith(renames)) == ("data", None, True)
        assert (error.got.split()[1:], "chosen" in error.expected) == (", ".join(columns.split()).split(), True)
    quoted = {"question": {"full_text": "q"}, "quotes_0": {}, "quotes_1": {}, "a_0": "x", "a_1": "y"}
    renames = "data.rename.chosen=a_0 data.rename.rejected=a_1 data.rename.prompt=question.full_text"  # as of webgpt
    assert refusal(learnt_columns, OF["DPO"], [*quoted], first=quoted).advice.endswith(renames)
    assert "data.rename.chosen" in refusal(learnt_columns, OF["DPO"], ["x_1", "x_3", "abc", "abd", "", "a", "b"]).hint


def test_the_column_of_plain_text_can_have_another_name(refusal) -> None:
    row, of = {"body": "a", "text": "b"}, OF["SFT"]
    assert learnt_columns(of, [*row], text_field="body") == ("body",)
    assert check_columns(RowTable([row], [*row]), of, text_field="body") == ["body"]
    assert only_learnt(datasets.Dataset.from_list([row]), of, text_field="body").column_names == ["body"]
    for refuses in (check_columns, only_learnt):
        error = refusal(refuses, RowTable([{"x": "a"}], ["x"]), of, text_field="body", name="data.eval")
        assert (error.where, error.hint.split()[0]) == ("data.eval", "data.eval.rename.prompt=COLUMN")
        assert "body" in error.expected


def test_trainers_that_rewrite_messages_get_those_of_a_role_and_a_text() -> None:
    stored = datasets.Features(dict.fromkeys(("chosen", "rejected"), datasets.List(datasets.Json())))
    dataset = datasets.Dataset.from_list([dict.fromkeys(stored, CHAT)], features=stored)
    assert only_learnt(dataset, OF["DPO"]).features == stored != only_learnt(dataset, OF["ORPO"]).features


ASKED, TOLD = CHAT
CALLED = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": {}}}]}
RESULT, MODEL = {"role": "tool", "content": "2"}, {"role": "model", "content": "ho"}
PICTURE, FIRST = {"type": "image"}, "data.eval, row 1 (the first row is 1)"
RENAME, TEMPLATE = "data.eval.rename", "data.prompt='{instruction} {context}'"
TO_ADD = "  # no column looks like {}: if none holds it, add it to the file"
KINDS = "chosen is {0}, rejected is {0}, prompt is {1}"
PAIR = {"prompt": CHAT[:1], "chosen": CHAT[1:], "rejected": [{**CHAT[1], "content": "no"}]}


def asked(**changes: object) -> list[dict[str, Any]]:
    return [{**ASKED, **changes}, TOLD]


def told(**changes: object) -> list[dict[str, Any]]:
    return [ASKED, {**TOLD, **changes}]


ROWS: dict[str, dict[str, Any]] = {
    "KTO": {"prompt": "p", "completion": "c", "label": True},
    **{name: {"messages": CHAT} for name in ("SFT", "GKD")},
    **dict.fromkeys(("DPO", "ORPO"), PAIR),
    "GRPO": {"prompt": CHAT[:1]},
    "SDFT": {"prompt": "p", "privileged_context": "c"},
    "Reward": {"chosen_ids": [1], "rejected_ids": [2]},
    "SFT ": {"input_ids": [1]},
    "SFT  ": {"prompt": CHAT[:1], "completion": CHAT[1:]},
}


@pytest.mark.parametrize(
    ("trainer", "column", "sound", "wrong"),
    [
        ("KTO", "completion", ["c"], [" "]),
        ("KTO", "label", [True, False, 1, 0], [2, None, "true"]),
        ("KTO", "chat_template_kwargs", [{}, {"a": 1}], [None, "x", [1]]),
        ("SFT", "tools", [None, [], [{"name": "f"}]], ["x", [3], [{"name": "f"}, 3]]),
        ("SDFT", "privileged_context", ["x", CHAT], ["", [], None, 5]),
        *(
            (trainer, column, [[1], [2, 3]], [[], None, "x", 5, [1, "x"], ["x", 1]])
            for trainer, column in (("SFT ", "input_ids"), ("Reward", "chosen_ids"), ("Reward", "rejected_ids"))
        ),
        (
            "SFT",
            "messages",
            [
                *(CHAT, [*CHAT, ASKED], [ASKED, CALLED, RESULT, MODEL], [ASKED, {**CALLED, "content": None}]),
                *(asked(content=""), asked(content=[{"type": "text"}]), asked(weight=0), told(train="all")),
                told(weight=1, train=True),
                told(loss_scale=1.0, train_detail=[{"begin_offset": 0, "train": True}]),
            ],
            [
                *(CHAT[:1], "text", ["x"], [{**TOLD, "role": "system"}, ASKED], [*CHAT, {**TOLD, "content": ""}]),
                *(told(content=5), told(content=None), told(role="model", content=" ")),
                *(asked(content=None), asked(content=[{"type": "text"}, PICTURE])),
                *(told(weight=0), told(weight=0.5), told(role="model", train=False), told(train="False")),
                *(told(loss=None), told(loss_mask=0)),
                told(train_detail=[{"begin_offset": 0, "end_offset": 1, "train": False}]),
            ],
        ),
        (
            "SFT  ",
            "prompt",
            [CHAT[:1], [ASKED, {**TOLD, "content": "", "train": False}, ASKED], [ASKED, CALLED, RESULT]],
            [CHAT, [ASKED, MODEL], "text", [{**ASKED, "content": None}]],
        ),
        (
            "SFT  ",
            "completion",
            [CHAT[1:], [TOLD, RESULT, MODEL]],
            [[*CHAT, RESULT], [*CHAT, ASKED], [{**TOLD, "role": "system"}]],
        ),
        ("DPO", "chosen", [CHAT[1:], [CALLED, RESULT, TOLD]], [[TOLD, ASKED], "text", [{**TOLD, "weight": 0}]]),
        ("DPO", "rejected", [[MODEL]], [[{**TOLD, "role": "developer"}], [{**TOLD, "content": " "}, TOLD]]),
        ("ORPO", "prompt", [CHAT[:1], [*CHAT, ASKED]], [[ASKED, CALLED, RESULT]]),
        ("GRPO", "prompt", [CHAT[:1], [ASKED, CALLED, RESULT]], [CHAT, [ASKED, MODEL]]),
        ("GKD", "messages", [CHAT, [ASKED, {**TOLD, "train": False}]], [[*CHAT, ASKED], [ASKED, CALLED, RESULT, TOLD]]),
    ],
)
def test_values_that_a_trainer_reads_or_refuses(
    trainer: str, column: str, sound: list[Any], wrong: list[Any], refusal
) -> None:
    """Behind the sound rows, for a model that reads no images; SFT learns all answers, GKD only the last one."""
    row, rows = ROWS[trainer], [{**ROWS[trainer], column: value} for value in sound]
    of = TRAINERS[f"{trainer.strip()}Trainer"]
    assert column in check_columns(RowTable(rows, list(rows[0])), of, reads_images=False)
    for value in wrong:
        table = RowTable([*rows, {**row, column: value}], list(rows[0]))
        error = refusal(check_columns, table, of, name="data.eval", reads_images=False)
        assert error.where == f"data.eval, row {len(sound) + 1} (the first row is 1)", value
        assert (error.got, bool(error.expected)) == (repr(value)[:160], True)
        for place, role in re.findall(r"message (\d) \((\w+)\)", error.expected):
            assert value[int(place) - 1]["role"] == role


@pytest.mark.parametrize(
    ("trainer", "row", "columns"),
    [
        ("GRPO", {"prompt": [{**ASKED, "content": [PICTURE]}], "image": 5}, ["prompt", "image"]),
        ("DPO", {"prompt": "hi", "chosen": CHAT, "rejected": [ASKED, MODEL]}, ["chosen", "rejected"]),
        ("DPO", {"chosen": "q? a", "rejected": "q? b", "query": " q? "}, ["chosen", "rejected"]),
        ("DPO", {"prompt": " ", "chosen": "a", "rejected": "b"}, ["chosen", "rejected", "prompt"]),
        ("SFT", {"text": "a", "role": "actor", "prompts": "b"}, ["text"]),
    ],
)
def test_columns_that_fit(trainer: str, row: dict[str, Any], columns: list[str], refusal) -> None:
    table = RowTable([row], list(row))
    for reads_images in (None, True):
        assert check_columns(table, OF[trainer], reads_images=reads_images) == columns
    if "image" in row:
        error = refusal(check_columns, table, OF[trainer], reads_images=False)
        assert (error.where, error.hint, "vision" in error.expected) == ("data", None, True)
        assert "data.rename.picture=image" in error.advice


@pytest.mark.parametrize(
    ("trainer", "row", "key", "told"),
    [
        ("SFT", {"text": "a", "role": "user"}, "hint", f"{RENAME}.speaker=role  # learns each text alone"),
        ("GRPO", {"prompt": "a", "prompts": "b", "role": "user"}, "hint", f"{RENAME}.data_prompts=prompts"),
        ("GRPO", {"prompt": "a", "completions": "b"}, "hint", f"{RENAME}.data_completions=completions"),
        ("DPO", {"chosen": CHAT, "rejected": [TOLD]}, "hint", f"{RENAME}.prompt=COLUMN{TO_ADD.format('prompt')}"),
        ("DPO", {"chosen": [MODEL], "rejected": CHAT, "messages": CHAT[:1]}, "hint", f"{RENAME}.prompt=messages"),
        ("DPO", {"chosen": [TOLD], "rejected": [TOLD], "query": "q"}, "hint", XLAM),
        ("DPO", {"chosen": "q? a", "rejected": "b", "query": "q?"}, "hint", f"{RENAME}.prompt=query"),
        (
            "DPO",
            {"chosen": "a", "rejected": "b", "query": {"question": "q"}},
            "hint",
            f"{RENAME}.prompt=query.question",
        ),
        ("DPO", {"chosen": "a", "rejected": "q? b", "instruction": "q?", "context": "c"}, "hint", TEMPLATE),
        # the kind of a column
        ("SFT", {"messages": "text"}, "where", FIRST),
        ("SFT", {"text": CHAT}, "where", FIRST),
        ("GRPO", {"prompt": " "}, "where", FIRST),
        ("DPO", {"chosen": "a", "rejected": ""}, "where", FIRST),
        ("DPO", {"chosen": CHAT, "rejected": [{**ASKED, "content": "x"}, MODEL]}, "where", FIRST),
        ("DPO", {"chosen": [1, 2], "rejected": [1, 3]}, "got", "[1, 2] (list)"),
        ("Reward", {"chosen": "c", "rejected": "r", "prompt": CHAT[:1]}, "got", KINDS.format("text", "messages")),
        ("Reward", {"chosen": [TOLD], "rejected": [TOLD], "prompt": "p"}, "got", KINDS.format("messages", "text")),
    ],
)
def test_columns_that_are_refused(trainer: str, row: dict[str, Any], key: str, told: str, refusal) -> None:
    error = refusal(check_columns, RowTable([row], list(row)), OF[trainer], name="data.eval")
    assert {"where": "data.eval", key: told}.items() <= vars(error).items()
    assert error.expected
    assert error.hint or error.got
