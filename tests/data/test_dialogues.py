"""Conversations in the forms in which people store them, and whole dialogues split into prompt and answers."""

from __future__ import annotations

import json
from typing import Any

import datasets
import pytest

from rlhf_cli.data import dialogues
from rlhf_cli.data.dialogues import read_conversations, split_transcripts, with_answers
from rlhf_cli.data.preparing import prepare
from rlhf_cli.data.rows import RowTable
from rlhf_cli.data.source import DataSource
from rlhf_cli.tables.trl_trainers import TRAINERS

ASKED, TOLD = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}
CHAT = [ASKED, TOLD]
HELLO = "\n\nHuman: Hello\n\nAssistant:"
TWICE, LONG = f"{HELLO} Hi!\n\nHuman: How are you?\n\nAssistant:", " Hi!\n\nHuman: Tea?\n\nAssistant: Yes."
SPOKEN = (("input", "hi", "user"), ("output", "ho", "assistant"))
F = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}


def table(*rows: dict[str, Any]) -> RowTable:
    return RowTable(rows, list(dict.fromkeys(name for row in rows for name in row)))


def contents(rows: Any) -> list[dict[str, Any]]:
    return [dict(rows[place]) for place in range(len(rows))]


def said(content: object, role: str = "assistant", **more: object) -> list[dict[str, Any]]:
    return [{"role": role, "content": content, **more}]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([{"role": "User", "value": "hi"}, {"role": "Model", "text": "ho"}], CHAT),
        ([{"from": "Human", "value": "hi"}, {"from": "gpt", "content": "ho"}], CHAT),
        ({"from": "gpt", "role": "user", "content": "hi"}, [ASKED]),
        ([said([{"type": f"{who}_text", "text": text}], role)[0] for who, text, role in SPOKEN], CHAT),
        ([{"role": "assistant", "content": "ho", "name": None, "tool_calls": []}], [TOLD]),
        *((said("ho", role), said("ho", role)) for role in ("function_call", "ipython", "developer", "narrator")),
        (
            [{"system": "s", "input": "hi", "output": "ho"}, {"input": "a", "output": None}],
            [*said("s", "system"), *CHAT, *said("a", "user")],
        ),
        ([ASKED, {"input": "a", "output": "b"}], [ASKED, {"input": "a", "output": "b", "content": None}]),
        ([{"speaker": "User", "text": "hi"}, {"speaker": "assistant", "text": "ho"}], CHAT),
        ({"from": ["human", "gpt"], "value": ["hi", "ho"]}, CHAT),
        (said("ho", reasoning="r"), said("ho", reasoning="r", thinking="r", reasoning_content="r")),
        (json.dumps(CHAT), CHAT),
        (str(CHAT), CHAT),
        (str(CHAT).replace("}, {", "}\n {"), CHAT),  # an array of numpy
        (" ", None),
        (5, 5),
        ([], []),
        ([ASKED, 3], [ASKED, 3]),
        ([{"from": "function_call", "value": json.dumps(F["function"])}], said("", tool_calls=[F])),
        ([{"role": "assistant", "function_call": {"name": "f", "arguments": '{"x": 1}'}}], said("", tool_calls=[F])),
        (said("a", tool_calls=F), said("a", tool_calls=[F])),
        *(
            (said("", tool_calls=[call]), said("", tool_calls=[{"type": "function", "function": function}]))
            for call, function in (
                ({"type": "function", "function": {"name": "f", "arguments": ""}}, {"name": "f", "arguments": {}}),
                ({"name": "g"}, {"name": "g", "arguments": {}}),
                (
                    {"name": "h", "id": None, "arguments": {"x": None, "y": [{"z": None}]}},
                    {"name": "h", "arguments": {"y": [{}]}},
                ),
            )
        ),
        (said([{"type": "text", "text": "a"}, {"value": "b"}, "c"]), said("abc")),
        (said([{"type": "image", "text": "a"}, "b"]), said([{"type": "image", "text": "a"}, "b"])),
        (said([{"type": "text", "text": 5}, "b"]), said([{"type": "text", "text": 5}, "b"])),
        (said([{"type": "image", "x": None}]), said([{"type": "image"}])),
    ],
)
def test_a_conversation_in_any_form(value: object, expected: object) -> None:
    assert contents(read_conversations(table({"messages": value}), ["messages"])) == [{"messages": expected}]


@pytest.mark.parametrize(
    "value",
    [
        [{"from": "ghost", "value": "a"}],
        *(said("a", role) for role in ("usr", "Asistant", "humna", "developper")),
        "[{",
        '"text"',
        said("", tool_calls=[5]),
        said("", tool_calls="{"),
        said("", tool_calls=[{"function": 3}]),
        said("", tool_calls=[{"name": "f", "arguments": "[1]"}]),
    ],
)
def test_a_conversation_that_cannot_be_read_is_named_by_its_row(value: object, refusal) -> None:
    error = refusal(read_conversations, table({"messages": CHAT}, {"messages": value}), ["messages"], name="data.eval")
    assert (error.where, bool(error.got)) == ("data.eval, row 2 (the first row is 1)", True)
    assert "ShareGPT" in error.expected


def test_columns_are_read_as_conversations_or_settings_by_their_name_and_first_value() -> None:
    """Text is a conversation in JSON only if the first text of its column is."""
    turns, text, read = [{"from": "human", "value": "hi"}], json.dumps([ASKED]), [ASKED]
    kept = {"text": turns, "prompt": None, "completion": turns, "tools": '[{"a": null}]', "chat_template_kwargs": None}
    late = {"text": turns, "prompt": turns, "completion": None, "tools": " ", "chat_template_kwargs": '{"b": 1}'}
    columns = [*kept, "chosen"]
    assert contents(read_conversations(table(kept, late), columns)) == [
        {"text": turns, "prompt": None, "completion": read, "tools": [{}], "chat_template_kwargs": {}},
        {"text": turns, "prompt": read, "completion": None, "tools": None, "chat_template_kwargs": {"b": 1}},
    ]
    lone = {"prompt": text, "completion": None}
    assert contents(read_conversations(table(lone), columns)) == [{"prompt": read, "completion": None}]
    no_messages = ("ho", "[1, 2]", "[]", '[{"a": 1}]', "[{", f"[{text}, 3]")
    for row in ({"prompt": text, "completion": other} for other in (text, *no_messages)):
        swapped = dict(zip(row, reversed(row.values()), strict=True))
        for given in (row, swapped):
            expected = {name: read if value == text else value for name, value in given.items()}
            assert contents(read_conversations(table(given), columns)) == [expected]


def test_a_dataset_stores_conversations_as_json_unless_they_are_plain() -> None:
    """In a mixture, all are stored so; trainers that rewrite messages get back those of a role and a text."""
    rows = {"prompt": [[ASKED]] * 2, "chosen": [[{**TOLD, "name": "n"}]] * 2, "tools": ["[]"] * 2, "other": [[1]] * 2}
    as_json, features = datasets.List(datasets.Json()), datasets.Features
    dataset = datasets.Dataset.from_dict(rows)
    read = read_conversations(dataset, ["prompt", "chosen", "tools"])
    kinds = {"chosen": as_json, "tools": datasets.Json()}
    assert read.features == features({**dataset.features, **kinds})
    assert read[1] == {"prompt": [ASKED], "chosen": [{**TOLD, "name": "n"}], "tools": None, "other": [1]}
    mixed = read_conversations(dataset, ["prompt", "chosen", "tools"], is_alone=False)
    assert mixed.features == features({**dataset.features, **kinds, "prompt": as_json})
    alone = prepare(dataset, DataSource(path="x"), None)
    assert alone.features["prompt"] == dataset.features["prompt"]  # type: ignore[union-attr]
    plain = dialogues.plain_messages(read)
    assert plain[1] == {"prompt": [ASKED], "chosen": [TOLD], "tools": None, "other": [1]}
    assert plain.features["chosen"] == dataset.features["prompt"]
    for column, value in (("prompt", [ASKED]), ("completion", [7, 8])):
        same = datasets.Dataset.from_dict({column: [value]})
        assert dialogues.plain_messages(same) is read_conversations(same, [column]) is same
    later = datasets.Dataset.from_dict({"prompt": [[ASKED], said("hi", "Human")]})
    assert read_conversations(later, ["prompt"])[1] == {"prompt": [ASKED]}
    for message in (said("hi", "Human"), ASKED, [{"role": 5, "content": "hi"}], said("hi", x=1)):
        other = datasets.Dataset.from_dict({"prompt": [message]})
        assert read_conversations(other, ["prompt"]).features == features(prompt=as_json)


@pytest.mark.parametrize("name", ["system", "system_prompt"])
def test_the_text_of_a_system_column_begins_the_dialogues_that_the_user_begins(name: str) -> None:
    rows = [
        {name: "s", "chosen": "text", "prompt": [ASKED]},
        {name: "", "chosen": [ASKED], "prompt": [ASKED]},
        {name: 5, "chosen": [ASKED], "prompt": [ASKED]},
        {name: "s", "chosen": [TOLD], "prompt": [*said("t", "system"), ASKED]},
    ]
    begun = [{**rows[0], "prompt": [*said("s", "system"), ASKED]}, *rows[1:]]
    assert contents(dialogues.with_system(table(*rows), ["chosen", "prompt"])) == begun
    for same in (table({"prompt": [ASKED]}), table({name: "s", "prompt": "a"}), RowTable([], [name, "prompt"])):
        assert dialogues.with_system(same, ["prompt"]) is same


def test_calls_alone_are_an_answer_to_messages(refusal) -> None:
    """The rows of xLAM; after a text prompt the text stays what it is, and another text is what a message says."""
    source = DataSource(path="x", rename={"completion": "answers"}, trainer=TRAINERS["SFTTrainer"])
    asked, calls = [{"role": "user", "content": "{query}"}], json.dumps([{"name": "f", "arguments": {"x": 1}}])
    rows = table(*[{"query": "hi", "answers": calls, "tools": '[{"name": "f"}]'}] * 2)
    made = {"prompt": [ASKED], "completion": said("", tool_calls=[F]), "tools": [{"name": "f"}]}
    for given in (rows, datasets.Dataset.from_list(contents(rows))):
        assert made.items() <= contents(prepare(given, source, asked))[1].items()
    assert prepare(rows, source, "{query}")[0]["completion"] == calls
    for other in ("ho", "[1, 2]", '{"name": "f", "arguments": {}}', '[{"name": "f"}]'):
        assert prepare(table({"query": "hi", "answers": other}), source, asked)[0]["completion"] == said(other)
    error = refusal(prepare, table(contents(rows)[0], {"query": "a", "answers": "no"}), source, asked)
    assert error.where == "data, row 2 (the first row is 1)"


def test_labels_are_read_if_all_say_good_or_bad() -> None:
    good, bad = ("True", "yes", "1", "GOOD", "desirable"), ("False", "no", "0", "bad", "Undesirable")
    labels = table(*({"label": word} for word in (*good, *bad)))
    assert contents(dialogues.with_labels(labels, ["label"])) == [{"label": True}] * 5 + [{"label": False}] * 5
    assert dialogues.with_labels(labels, []) is labels
    for second in ("so so", True):
        same = table({"label": "yes"}, {"label": second})
        assert dialogues.with_labels(same, ["label"]) is same


RULES = {"role": "system", "content": "Be terse."}


@pytest.mark.parametrize(
    ("prompt", "answer", "rest"),
    [
        ([RULES, ASKED], [ASKED, TOLD], [TOLD]),
        ([RULES, ASKED], [RULES, {**ASKED, "content": f" {ASKED['content']}\n", "id": 1}, TOLD], [TOLD]),
        ([RULES], [RULES, TOLD], [TOLD]),
        ([ASKED], [RULES, ASKED, TOLD], None),  # a system message that the prompt lacks
        ([RULES, ASKED], [{**RULES, "content": "x"}, ASKED, TOLD], None),
        ([{**ASKED, "tool_calls": [1]}], [{**ASKED, "tool_calls": [2]}, TOLD], None),
    ],
)
def test_a_prompt_is_repeated_with_or_without_its_system_message(prompt: Any, answer: Any, rest: Any) -> None:
    rows = table({"prompt": prompt, "completion": answer})
    made = dialogues.without_repeats(rows, ["prompt", "completion"])
    assert made[0]["completion"] == (answer if rest is None else rest)


def test_answers_lose_the_messages_of_the_prompt_that_they_begin_with() -> None:
    rows = [{"prompt": [ASKED], "chosen": rest, "rejected": [ASKED], "messages": CHAT} for rest in ([TOLD], CHAT)]
    rows += [{**rows[0], "prompt": "ab", "chosen": "abc"}, {**rows[0], "prompt": [], "chosen": [*CHAT, *CHAT]}]
    rows += [{**rows[0], "chosen": [*CHAT, ASKED, TOLD]}, {**rows[0], "prompt": CHAT, "chosen": [*CHAT, ASKED]}]
    columns = ["chosen", "rejected", "messages", "prompt"]
    rests: list[Any] = [[TOLD], [TOLD], "abc", [*CHAT, *CHAT], [TOLD, *CHAT], [ASKED]]
    expected = [{**row, "chosen": rest} for row, rest in zip(rows, rests, strict=True)]
    assert contents(dialogues.without_repeats(table(*rows), columns)) == expected
    for same in (table(rows[0]), table({"chosen": CHAT, "messages": CHAT})):
        assert dialogues.without_repeats(same, columns) is same


@pytest.mark.parametrize(
    ("columns", "made"),
    [
        ("chosen rejected", "prompt"),
        ("chosen rejected messages", "prompt"),
        ("messages", "prompt completion"),
        ("conversations chosen", "prompt completion"),
    ],
)
def test_what_is_made_of_dialogues(columns: str, made: str, refusal) -> None:
    rows = table(dict.fromkeys(columns.split(), None))
    assert split_transcripts(rows, is_whole=False).column_names == (*columns.split(), *made.split())
    error = refusal(split_transcripts, table({"chosen": "a", "rejectd": "b"}), name="data.eval")
    assert (error.where.split()[0], error.hint, error.expected) == ("data.eval", "rejectd", "one of chosen, rejectd")
    same = table({"prompt": "p", "chosen": f"{HELLO} a", "rejected": f"{HELLO} b", "messages": CHAT})
    assert split_transcripts(same) is same
    talks = [{"messages": None, "conversations": talk} for talk in ([ASKED, TOLD, ASKED], None)]
    assert contents(split_transcripts(table(*talks))) == [
        {**talks[0], "prompt": [*CHAT, ASKED], "completion": []},
        {**talks[1], "prompt": [], "completion": []},
    ]


NO = [{"role": "assistant", "content": "no"}]
OTHER = {"role": "user", "content": "Bye."}


@pytest.mark.parametrize(
    ("chosen", "rejected", "prompt", "answers"),
    [
        (CHAT, "no", CHAT[:-1], (CHAT[-1:], NO)),  # ms-swift's rejected_response
        (CHAT, [*CHAT[:-1], *NO], CHAT[:-1], (CHAT[-1:], NO)),
        ([*CHAT, *CHAT], [*CHAT[:-1], *NO], CHAT[:-1], ([*CHAT[-1:], *CHAT], NO)),
        (CHAT, CHAT, CHAT[:-1], (CHAT[-1:], CHAT[-1:])),
        (CHAT, [OTHER, *NO], "", (CHAT, [OTHER, *NO])),
        (CHAT, None, "", (CHAT, None)),
        (NO, CHAT[-1:], "", (NO, CHAT[-1:])),
    ],
)
def test_two_dialogues_are_split_where_they_part(chosen: Any, rejected: Any, prompt: Any, answers: Any) -> None:
    made = dialogues.split_row({"chosen": chosen, "rejected": rejected})
    assert made == dict(zip(("prompt", "chosen", "rejected"), (prompt, *answers), strict=True))


def test_a_row_without_transcripts_keeps_its_texts_and_gets_an_empty_prompt(refusal) -> None:
    pair = {"chosen": f"{HELLO} a", "rejected": f"{HELLO} b"}
    assert dialogues.split_row(pair) == {"prompt": HELLO, "chosen": " a", "rejected": " b"}
    row = {"chosen": None, "rejected": f"{HELLO} b"}
    assert dialogues.split_row(row) == {"prompt": "", **row}
    many = datasets.Dataset.from_list([{"chosen": "a", "rejected": "b"}] * 1500 + [pair])
    assert split_transcripts(many)[1500]["prompt"] == HELLO
    error = refusal(split_transcripts, many.select(range(1500)))
    assert (error.got, error.hint, "Human:" in error.expected) == ("'a'", "data.transcripts=false", True)
    assert len(split_transcripts(many.select([]))) == 0
    few = table({"chosen": "a", "rejected": "b"})
    assert refusal(split_transcripts, few).hint == error.hint
    assert split_transcripts(few, is_whole=False)[0]["prompt"] == ""
    assert split_transcripts(datasets.Dataset.from_list([{**pair, "messages": CHAT}]))["prompt"][:] == [HELLO]
    talks = datasets.Features(messages=datasets.List(datasets.Json()))
    talk = split_transcripts(datasets.Dataset.from_list([{"messages": CHAT}], features=talks))
    assert (talk.features["prompt"], talk[0]["completion"]) == (talks["messages"], [TOLD])


@pytest.mark.parametrize(
    ("prompt", "chosen", "rejected"),
    [
        (TWICE, " Fine.", " Go away."),
        (TWICE, " Fine.", ""),
        (TWICE, " I am fine.", " I am not."),  # it is the turn that ends the prompt, not the last letter in common
        (HELLO, LONG, " Ho!\n\nHuman: Tea?\n\nAssistant: No."),  # later turns of one dialogue are no part of the prompt
        (HELLO, LONG, " Hi!"),
        ("", "Fine.", "Go away."),
        ("", f"{HELLO} Hi!", "Hi!"),
        ("", f"{HELLO} Hi!", HELLO.replace("Hello", "Bye") + " Hi!"),
        ("", "I said \n\nAssistant: once", "I said \n\nAssistant: twice"),
    ],
)
def test_a_transcript_is_split_at_the_last_answer_both_share(prompt: str, chosen: str, rejected: str) -> None:
    for better, worse in ((chosen, rejected), (rejected, chosen)):
        row = {"chosen": prompt + better, "rejected": prompt + worse}
        assert dialogues.split_row(row) == {"prompt": prompt, "chosen": better, "rejected": worse}


@pytest.mark.parametrize("is_stored", [True, False])
def test_an_answer_that_is_text_follows_a_prompt_of_messages(is_stored: bool) -> None:
    rows = [{"prompt": [ASKED], "completion": text, "other": "x"} for text in ("ho", "hum")]
    made = with_answers(datasets.Dataset.from_list(rows) if is_stored else table(*rows), ["prompt", "completion"])
    assert contents(made) == [{**row, "completion": said(row["completion"])} for row in rows]
    pairs: tuple[dict[str, Any], ...] = ({"prompt": "hi"}, {"prompt": [ASKED], "completion": [TOLD]}, {})
    for other in (table({"completion": "ho", **unlike}) for unlike in pairs):
        assert with_answers(other, [*other.column_names]) is other
