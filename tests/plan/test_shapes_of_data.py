"""The shapes in which people's files come: each is read as its makers mean it, or refused with what to type."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.data.loading import load_split
from rlhf_cli.data.source import DataSource
from rlhf_cli.errors import ConfigError, DataError, UserError
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.tables.trl_trainers import TRAINERS
from rlhf_cli.trainers.assemble.trainer import training_rows
from tests.support.planning import planned


def turns(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"from": sender, "value": value} for sender, value in pairs]


def user(text: object) -> dict[str, Any]:
    return {"role": "user", "content": text}


def says(text: object) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


TALK = [user("What is 2 plus 3?"), says("5")]
SHAREGPT = turns(("human", "What is 2 plus 3?"), ("gpt", "5"))
GEMINI = [{"role": role, "parts": [{"text": text}]} for role, text in (("user", "What is 2 plus 3?"), ("model", "5"))]
PARTS = [
    user([{"type": "text", "text": "What is "}, {"type": "text", "text": "2 plus 3?"}]),
    says([{"type": "text", "value": "5"}]),
]
PAIR = {"prompt": TALK[:1], "chosen": [says("5")], "rejected": [says("no idea")]}
FUNCTION = {
    "name": "look_up",
    "description": "d",
    "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}},
}
CALL = {"type": "function", "function": {"name": "look_up", "arguments": {"x": 1}}}
CALLED = [user("hi"), says("") | {"tool_calls": [CALL]}, {"role": "tool", "content": "7"}, says("seven")]
AS_TEXT = {"type": "function", "function": {"name": "look_up", "arguments": '{"x": 1}'}}
GLAIVE = turns(("human", "hi"), ("function_call", json.dumps(CALL["function"])), ("observation", "7"), ("gpt", "seven"))
HH = {"chosen": "\n\nHuman: hi\n\nAssistant: ho", "rejected": "\n\nHuman: hi\n\nAssistant: go away"}
ORCA = {"system": "You are terse.", "question": "What is 2 plus 3?", "chosen": "5", "rejected": "I do not know"}
ULTRA = {
    "prompt": "What is 2 plus 3?",
    "chosen": TALK,
    "rejected": [TALK[0], says("6")],
    "messages": TALK,
    "score_chosen": 9.0,
}
SYSTEM = {"role": "system", "content": "Be terse."}
ALPACA = {"instruction": "Add.", "input": "2 plus 3", "output": "5"}
VERL = {"data_source": "sums", "prompt": TALK[:1], "reward_model": {"style": "rule", "ground_truth": "5"}}

READ: list[tuple[str, str, dict[str, Any], list[str], dict[str, Any]]] = [
    ("FastChat", "sft", {"id": "0", "conversations": SHAREGPT}, [], {"messages": TALK}),
    (
        *("XTuner", "sft", {"conversation": [{"system": "Be brief.", "input": "What is 2 plus 3?", "output": "5"}]}),
        *(["data.rename.messages=conversation"], {"messages": [{"role": "system", "content": "Be brief."}, *TALK]}),
    ),
    (
        *("Firefly", "sft", {"conversation": [{"human": "What is 2 plus 3?", "assistant": "5"}]}),
        *(["data.rename.messages=conversation"], {"messages": TALK}),
    ),
    ("Gemini", "sft", {"contents": GEMINI}, ["data.rename.messages=contents"], {"messages": TALK}),
    (
        *("ms-swift's pairs", "dpo", {"messages": TALK, "rejected_response": "6"}),
        ["data.rename.chosen=messages", "data.rename.rejected=rejected_response", "data.transcripts=true"],
        {"prompt": TALK[:1], "chosen": TALK[1:], "rejected": [says("6")]},
    ),
    ("OpenAI's names in the column conversations", "sft", {"conversations": TALK}, [], {"messages": TALK}),
    (
        *("Gemini's roles and ShareGPT's value", "sft"),
        *({"messages": [{"role": "User", "value": TALK[0]["content"]}, {"role": "model", "text": "5"}]}, []),
        {"messages": TALK},
    ),
    ("plain text", "sft", {"body": "hi"}, ["trainer.args.dataset_text_field=body"], {"body": "hi"}),
    ("messages as JSON text", "sft", {"messages": json.dumps(TALK)}, [], {"messages": TALK}),
    ("messages as pandas writes them into a CSV", "sft", {"messages": str(TALK)}, [], {"messages": TALK}),
    ("prompts as JSON text", "grpo", {"prompt": json.dumps(TALK[:1])}, [], {"prompt": TALK[:1]}),
    ("content in parts", "sft", {"messages": PARTS}, [], {"messages": TALK}),
    (
        *("OpenAI's tools", "sft"),
        {
            "messages": [CALLED[0], says("") | {"tool_calls": [AS_TEXT]}, *CALLED[2:]],
            "tools": [{"type": "function", "function": FUNCTION}],
        },
        *([], {"messages": CALLED, "tools": [{"type": "function", "function": FUNCTION}]}),
    ),
    (
        *("OpenAI's earlier calls", "sft"),
        {
            "messages": [
                user("hi"),
                {"role": "assistant", "content": None, "function_call": AS_TEXT["function"]},
                {"role": "function", "content": "7"},
                says("seven"),
            ]
        },
        *([], {"messages": CALLED}),
    ),
    (
        *("glaive's tools in LLaMA-Factory's form", "sft", {"conversations": GLAIVE, "tools": json.dumps([FUNCTION])}),
        *([], {"messages": CALLED, "tools": [FUNCTION]}),
    ),
    (
        *("ShareGPT pairs", "dpo"),
        *({"prompt": SHAREGPT[:1], "chosen": SHAREGPT[1:], "rejected": turns(("gpt", "no idea"))}, [], PAIR),
    ),
    (
        *("LLaMA-Factory's pairs", "dpo"),
        {"conversations": SHAREGPT[:1], "chosen": SHAREGPT[1], "rejected": turns(("gpt", "no idea"))[0]},
        *(["data.rename.prompt=conversations"], PAIR),
    ),
    (
        *("axolotl's pairs, with names", "orpo"),
        {"messages": [TALK[0] | {"name": "al"}], "chosen": says("5") | {"id": 1}, "rejected": says("no idea")},
        *(["data.rename.prompt=messages"], PAIR),
    ),
    (
        *("pairs that repeat their prompt", "dpo"),
        *({"prompt": TALK[:1], "chosen": TALK, "rejected": [TALK[0], says("6")]}, []),
        {"prompt": TALK[:1], "chosen": TALK[1:], "rejected": [says("6")]},
    ),
    (
        *("a completion that repeats the prompt of a template", "sft", {"q": TALK[0]["content"], "completion": TALK}),
        *(['data.prompt=[{role: user, content: "{q}"}]'], {"prompt": TALK[:1], "completion": TALK[1:]}),
    ),
    ("UltraFeedback", "dpo", ULTRA, [], {"chosen": TALK, "rejected": ULTRA["rejected"]}),
    ("UltraFeedback of a reward model", "reward", ULTRA, [], {"chosen": TALK, "rejected": ULTRA["rejected"]}),
    (
        *("orca pairs", "dpo", ORCA, ["data.rename.prompt=question"]),
        {"prompt": ORCA["question"], "chosen": "5", "rejected": "I do not know"},
    ),
    (
        *("orca pairs with their system text", "cpo", ORCA, ["data.prompt='{system} {question}'"]),
        {"prompt": "You are terse. What is 2 plus 3?", "chosen": "5", "rejected": "I do not know"},
    ),
    (
        *("HH transcripts", "dpo", HH, ["data.transcripts=true"]),
        {"prompt": "\n\nHuman: hi\n\nAssistant:", "chosen": " ho", "rejected": " go away"},
    ),
    ("HH transcripts whole", "reward", HH, [], HH),
    (
        *("LLaMA-Factory's KTO", "kto", {"messages": TALK, "label": True}, ["data.transcripts=true"]),
        {"prompt": TALK[:1], "completion": TALK[1:], "label": True},
    ),
    (
        *("KTO", "kto", {"prompt": "2+3", "completion": "5", "label": True}, []),
        {"prompt": "2+3", "completion": "5", "label": True},
    ),
    (
        *("labels as text", "kto", {"prompt": "2+3", "completion": "5", "label": "False"}, []),
        {"prompt": "2+3", "completion": "5", "label": False},
    ),
    (
        *("Alpaca without an input", "sft", ALPACA | {"input": None}),
        ["data.prompt='{instruction}\n{input}'", "data.rename.completion=output"],
        {"prompt": "Add.\n", "completion": "5"},
    ),
    (
        *("Alpaca", "sft", ALPACA, ["data.prompt='{instruction}\n{input}'", "data.rename.completion=output"]),
        {"prompt": "Add.\n2 plus 3", "completion": "5"},
    ),
    (
        *("a part of the prompt", "grpo", {"prompt": {"id": 1, "text": "hi"}}, ["data.rename.prompt=prompt.text"]),
        {"prompt": "hi"},
    ),
    ("verl", "grpo", VERL, ["data.rename.answer=reward_model.ground_truth"], VERL | {"answer": "5"}),
    (
        *("OpenAI's weights, the last answer alone", "sft"),
        {"messages": [user("hi"), says("ho") | {"weight": 0}, TALK[0], says("5") | {"weight": 1}]},
        ["data.transcripts=true"],
        {"prompt": [user("hi"), says("ho") | {"weight": 0}, TALK[0]], "completion": [says("5") | {"weight": 1}]},
    ),
    (
        *("prompts of demonstrations", "grpo", {"messages": TALK}, ["data.transcripts=true"]),
        {"messages": TALK, "prompt": TALK[:1], "completion": TALK[1:]},
    ),
    (
        *("Open-Thoughts: ShareGPT beside its system text", "sft", {"system": "Be terse.", "conversations": SHAREGPT}),
        *([], {"messages": [SYSTEM, *TALK]}),
    ),
    (
        *("prompts beside their system text", "grpo", {"system": "Be terse.", "prompt": TALK[:1]}, []),
        {"system": "Be terse.", "prompt": [SYSTEM, *TALK[:1]]},
    ),
    (
        *("whole pairs beside their system text, once", "dpo"),
        *({"system_prompt": "Be terse.", "chosen": TALK, "rejected": [SYSTEM, TALK[0], says("6")]}, []),
        {"chosen": [SYSTEM, *TALK], "rejected": [SYSTEM, TALK[0], says("6")]},
    ),
    (
        *("a system text under another name", "sft", {"system": "Be terse.", "messages": TALK}),
        *(["data.rename.unread=system"], {"messages": TALK}),
    ),
    (
        *("OpenAssistant's roles", "sft", {"messages": [{"role": "prompter", "text": TALK[0]["content"]}, TALK[1]]}),
        *([], {"messages": TALK}),
    ),
    ("WildChat", "sft", {"conversation": TALK}, ["data.rename.messages=conversation"], {"messages": TALK}),
    (
        *("Countdown's numbers", "grpo", {"nums": [2, 3], "target": 5}, ["data.prompt='Make {target} of {nums}.'"]),
        {"nums": [2, 3], "target": 5, "prompt": "Make 5 of [2, 3]."},
    ),
]


def words(trainer: str, *typed: str) -> list[str]:
    rewards = ["+reward@rewards.x=brevity"] if trainer == "grpo" else []
    return [f"trainer={trainer}", "model=local", "data=file", "data.path=rows.jsonl", *rewards, *map(unquoted, typed)]


def unquoted(word: str) -> str:
    return word if "\n" in word or " " in word else shlex.split(word)[0]


def written(place: Path, *rows: dict[str, Any]) -> None:
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize(
    ("name", "trainer", "row", "typed", "expected"), READ, ids=[f"{case[0]}, {case[1]}" for case in READ]
)
def test_rows_that_are_read(
    name: str,
    trainer: str,
    row: dict[str, Any],
    typed: list[str],
    expected: dict[str, Any],
    chat_model: str,
    place: Path,
) -> None:
    written(place, *[row] * 8)
    everything = words(trainer, chat_model, *typed)
    plan = planned(*everything)
    rows = training_rows(prepare(everything).experiment)[0]
    assert rows.to_list()[0] == expected
    read = {"system", "system_prompt"} if str(SYSTEM) in str(expected) else set()
    assert set(plan.unread).isdisjoint({*expected, *read})


REFUSED: list[tuple[str, dict[str, Any], str | None]] = [
    ("dpo", ORCA, "data.rename.prompt=question"),
    ("orpo", ORCA, "data.rename.prompt=question"),
    ("kto", ORCA, "data.rename.prompt=question"),
    ("reward", ORCA, "data.rename.prompt=question"),
    (
        *("dpo", {"conversations": TALK[:1], "chosen": [says("5")], "rejected": [says("6")]}),
        "data.rename.prompt=conversations",
    ),
    (
        *("dpo", {"question": "2+3?", "chosen": [says("5")], "rejected": [says("6")]}),
        "data.prompt='[{role: user, content: \"{question}\"}]'",
    ),
    ("kto", {"messages": TALK, "label": True}, "data.transcripts=true"),
    ("grpo", {"messages": TALK[:1]}, "data.rename.prompt=messages"),
    ("grpo", {"question": "2+3?", "answer": "5"}, "data.rename.prompt=question, or data.prompt='... {question} ...'"),
    ("grpo", {"prompt": "2+3?", "completions": [{"model": "x"}]}, "data.rename.data_completions=completions"),
    (
        *("sft", ALPACA),
        "data.prompt='{instruction} {input}' data.rename.completion=output, or trainer.args.dataset_text_field=COLUMN",
    ),
    (
        *("sft", {"prompt": "2+3?", "The answer, short": "5"}),
        "data.rename.completion=EXISTING_COLUMN, or trainer.args.dataset_text_field=COLUMN",
    ),
    ("sft", {"messages": [*TALK, {"role": "narrator", "content": "the end"}]}, None),
    ("sft", {"messages": TALK, "tools": "a calculator"}, None),
    ("kto", {"prompt": "2+3", "completion": "5", "label": "so so"}, None),
    ("sft", {"messages": [user("2+3?"), {"role": "assistant", "content": None}]}, None),
    ("sft", {"messages": [user("2+3?")]}, None),
    ("sft", {"messages": [*TALK, user("and 4 plus 4?"), says(" ")]}, None),
    ("sft", {"prompt": TALK[:1], "completion": [says("5"), user("why?"), says("")]}, None),
    ("sft", {"messages": [user("hi"), says("ho") | {"weight": 0}, *TALK]}, None),
    ("sft", {"conversations": [*SHAREGPT[:1], SHAREGPT[1] | {"train": False}]}, None),
    ("sft", {"conversations": turns(("human", "a"), ("ghost", "b"))}, None),
    (
        "sft",
        {"messages": [user("hi"), says("") | {"tool_calls": [{"function": {"name": "f", "arguments": "{x"}}]}]},
        None,
    ),
    ("sft", {"messages": [user([{"type": "image"}, {"type": "text", "text": "who?"}]), says("x")]}, None),
    ("sft", {"prompt": "2+3?", "completion": "5", "images": []}, "data.rename.picture=images"),
    ("grpo", {"prompt": "2+3?", "image": "cat.png"}, "data.rename.picture=image"),
    ("grpo", {"prompt": TALK}, None),
    ("dpo", PAIR | {"rejected": TALK[:1]}, None),
    ("dpo", PAIR | {"prompt": "2+3?", "image": "a.png"}, "data.rename.picture=image"),
    ("sft", {"conversation": TALK}, "data.rename.messages=conversation, or trainer.args.dataset_text_field=COLUMN"),
    ("grpo", {"conversation": TALK}, "data.rename.messages=conversation data.transcripts=true"),
    (
        *("kto", {"conversation": TALK, "kto_tag": True}),
        "data.rename.messages=conversation data.transcripts=true data.rename.label=kto_tag",
    ),
    ("dpo", ALPACA | {"chosen": "5", "rejected": "6"}, "data.prompt='{instruction} {input}'"),
    ("sft", {"text": "hi", "role": "prompter"}, "data.rename.speaker=role  # learns each text alone"),
]
OTHER_TEMPLATES: list[tuple[str, dict[str, Any], str]] = [
    ("sft", {"messages": CALLED}, "chatml"),
    ("sft", {"messages": TALK, "tools": [FUNCTION]}, "chatml"),
    ("sft", {"messages": [TALK[1], TALK[0], TALK[1]]}, "gemma3"),
]


@pytest.mark.parametrize(
    ("trainer", "row", "hint", "chat_model"),
    [*((*case, "qwen2_5") for case in REFUSED), *((*case[:2], None, case[2]) for case in OTHER_TEMPLATES)],
    indirect=["chat_model"],
)
def test_refused_rows(trainer: str, row: dict[str, Any], chat_model: str, hint: str | None, place: Path) -> None:
    """In the first row, and in a later one where the first is sound."""
    written(place, *[row] * 4)
    with pytest.raises(UserError) as error:
        planned(*words(trainer, chat_model))
    assert isinstance(error.value, DataError)
    assert ("rows.jsonl" in str(error.value.where), bool(error.value.expected)) == (True, True)
    if hint is None:
        assert ("row 1" in str(error.value.where), bool(error.value.got)) == (True, True)
    else:
        assert hint == error.value.hint or hint in str(error.value.advice)


@pytest.mark.parametrize("late", [{"messages": [*TALK, {"role": "narrator", "content": "a"}]}, {"messages": "no JSON"}])
def test_the_bad_row_is_named(late: dict[str, Any], chat_model: str, place: Path) -> None:
    sound = {"messages": TALK} if isinstance(late["messages"], list) else {"messages": json.dumps(TALK)}
    written(place, sound, sound, late)
    with pytest.raises(DataError) as error:
        planned(*words("sft", chat_model))
    assert "row 3" in str(error.value.where)


def test_a_dialogue_is_split_whatever_the_first_rows_hold(chat_model: str, place: Path) -> None:
    """A table's types are written a thousand rows at a time."""
    call = says("") | {"tool_calls": [CALL]}
    written(place, *[{"messages": TALK}] * 1001, {"messages": [*TALK, TALK[0], call]})
    typed = words("sft", chat_model, "data.transcripts=true")
    planned(*typed)
    rows = training_rows(prepare(typed).experiment)[0]
    assert rows[1001] == {"prompt": [*TALK, TALK[0]], "completion": [call]}


def test_a_path_into_a_column_keeps_its_type(place: Path) -> None:
    """Where the first thousand values are null, too."""
    written(place, *[{"prompt": "2+3?", "extra": {"a": None}}] * 1001, {"prompt": "2+3?", "extra": {"a": "5"}})
    rows = load_split([DataSource(path="rows.jsonl", rename={"answer": "extra.a"})], seed=0)
    assert rows[0]["answer"] is None
    assert rows[1001]["answer"] == "5"


def test_unread_columns(chat_model: str, place: Path) -> None:
    written(place, *[ORCA | {"prompt": "2+3?"}] * 8)
    assert planned(*words("dpo", chat_model)).unread == ("system", "question")
    written(place, *[ORCA | {"prompt": "2+3?", "margin": 1.0}] * 8)
    assert planned(*words("reward", chat_model)).unread == ("system", "question", "margin")
    rule = "reward_model.margin.column=margin"
    assert planned(*words("reward", chat_model), rule).unread == ("system", "question")
    written(place, *[ORCA | {"prompt": "2+3?"}] * 8)
    (place / "rewards.py").write_text(
        "def one(completions, question, **kw): ...\ndef two(completions, question): ...\n"
    )
    generating = [word for word in words("grpo", chat_model) if "brevity" not in word]
    assert planned(*generating, "rewards.x.fn=./rewards.py:two").unread == ("system", "chosen", "rejected")
    assert planned(*generating, "rewards.x.fn=./rewards.py:one").unread == ()
    assert (
        planned(*generating, "rewards.x.fn=./rewards.py:two", "data.prompt={system} {question}").unread
        == ("prompt", "chosen", "rejected")[1:]
    )


def test_sharegpt_in_the_first_row_gives_a_notice(chat_model: str, place: Path) -> None:
    written(place, {"conversations": SHAREGPT}, *[{"conversations": TALK}] * 7)
    (text,) = [notice.text for notice in planned(*words("sft", chat_model)).notices if notice.subject == "data"]
    assert (text.startswith("conversations: "), text.endswith("user, assistant")) == (True, True)


def test_conversations_without_a_last_answer_give_a_notice(chat_model: str, place: Path) -> None:
    written(place, *[{"messages": TALK}] * 5, *[{"messages": [*TALK, user("thanks")]}] * 3)
    (text,) = [notice.text for notice in planned(*words("sft", chat_model)).notices if notice.subject == "data"]
    assert (text.startswith("3 of 8 conversations"), "row 6;" in text) == (True, True)
    assert "trainer.args.assistant_only_loss=true" in text
    written(place, *[{"messages": TALK}] * 8)
    assert planned(*words("sft", chat_model)).notices == ()


def test_two_hundred_rows_are_looked_at_for_what_is_read_twice_or_left_out(chat_model: str, place: Path) -> None:
    thought = {"messages": [TALK[0], says("5") | {"thinking": "two, three"}]}
    repeats, bare = ({"prompt": "2+3?", "completion": text} for text in ("2+3? 5", "5"))
    for rows, told in (
        ([repeats] * 200 + [bare], 1),
        ([repeats] * 199 + [bare], 0),
        ([{"messages": TALK}] * 199 + [thought], 1),
        ([{"messages": TALK}] * 200 + [thought], 0),
    ):
        written(place, *rows)
        subjects = [notice.subject for notice in planned(*words("sft", chat_model)).notices]
        assert subjects.count("data") == told


@pytest.mark.parametrize(
    ("trainer", "row", "chat_model", "is_told"),
    [
        ("sft", {"messages": [TALK[0], says("5") | {"reasoning_content": "two, three"}]}, "qwen2_5", True),
        ("dpo", {**PAIR, "chosen": [says("5") | {"thinking": "two, three"}]}, "qwen2_5", True),
        ("sft", {"messages": [TALK[0], says("5") | {"reasoning_content": "two, three"}]}, "qwen3", False),
        ("sft", {"messages": [TALK[0], says("5") | {"reasoning": "two, three"}]}, "qwen3", False),
        ("sft", {"messages": TALK}, "qwen2_5", False),
        ("dpo", {"prompt": "2+3?", "chosen": "2+3? 5", "rejected": "2+3? 6"}, "qwen2_5", True),
        ("sft", {"prompt": "2+3?", "completion": "2+3? 5"}, "qwen2_5", True),
        ("sft", {"prompt": "2+3?", "completion": "5"}, "qwen2_5", False),
        ("sft", {"prompt": TALK[:1], "completion": [user("2+4?"), says("5")]}, "qwen2_5", True),
        ("dpo", {"chosen": "I think 5", "rejected": "I do not", "history": "2 + 3?"}, "qwen2_5", True),
        ("dpo", {"chosen": "2 + 3? 5", "rejected": "2 + 3? 6", "history": "2 + 3?"}, "qwen2_5", False),
        ("grpo", {"prompt": TALK[:1], "tools": [FUNCTION]}, "qwen2_5", True),
        ("kto", {"prompt": "2+3?", "completion": "5", "label": False}, "qwen2_5", True),
    ],
    indirect=["chat_model"],
)
def test_what_is_left_out_or_read_twice_gives_a_notice(
    trainer: str, row: dict[str, Any], chat_model: str, is_told: bool, place: Path
) -> None:
    """Reasoning the template leaves out, texts that repeat their prompt, tools GRPO ignores, labels all alike."""
    written(place, *[row] * 4)
    assert [notice.subject for notice in planned(*words(trainer, chat_model)).notices].count("data") == is_told


def test_a_mixture_of_two_forms(chat_model: str, place: Path) -> None:
    (place / "mine.jsonl").write_text((json.dumps({"messages": TALK}) + "\n") * 4)
    written(place, *[{"messages": SHAREGPT}] * 4)
    sources = [DataSource(path=name, trainer=TRAINERS["SFTTrainer"]) for name in ("mine.jsonl", "rows.jsonl")]
    assert {json.dumps(row) for row in load_split(sources, seed=0).to_list()} == {json.dumps({"messages": TALK})}


def test_a_name_with_blanks_or_signs_can_be_typed(chat_model: str, place: Path) -> None:
    for name in (" completion", "Completion, ok"):
        written(place, *[{"prompt": "q", name: "a"}] * 4)
        with pytest.raises(DataError) as caught:
            planned(*words("sft", chat_model))
        assert planned(*words("sft", chat_model, *shlex.split(str(caught.value.command)))).num_rows == 4


def test_answers_that_are_all_empty_and_sources_that_disagree_are_refused(place: Path) -> None:
    """Only where a reward reads them; it was trained on nothing, or refused by the run."""
    sizes = ["trainer.args.per_device_train_batch_size=8", "trainer.args.num_generations=2"]
    words_of = ["exp=quickstart", "~rewards.correct", "~expect", *sizes]
    for name, answer in (("text", "2"), ("number", 2), ("null", None), ("empty", "")):
        (place / f"{name}.jsonl").write_text((json.dumps({"prompt": "1+1=", "answer": answer}) + "\n") * 9)
    mix = ["~data.world", "~data.args", "data.mix.a.path=text.jsonl"]
    cases = {"data.mix.b": [*mix, "data.mix.b.path=number.jsonl"]}
    cases |= {"data": ["data=file", "data.path=null.jsonl"], "data ": ["data=file", "data.path=empty.jsonl"]}
    for where, typed in cases.items():
        planned(*words_of, *typed)
        with pytest.raises(DataError) as caught:
            planned(*words_of, *typed, "+reward@rewards.match=exact_match")
        assert caught.value.where == where.strip()
        assert (
            ("empty" in str(caught.value.got))
            == ("rewards.match" in str(caught.value.expected))
            == (where != "data.mix.b")
        )
    planned(*words_of, *mix, "data.mix.b.path=null.jsonl", "+reward@rewards.match=exact_match")


@pytest.mark.parametrize("chat_model", ["qwen3"], indirect=True)
def test_a_variable_that_the_chat_template_does_not_read(chat_model: str, place: Path) -> None:
    written(place, *[{"prompt": TALK[:1]}] * 8)
    key = "trainer.args.chat_template_kwargs"
    for name, hint in (("enable_thinkng", f" {key}.enable_thinking=false"), ("colour", "")):
        with pytest.raises(ConfigError) as error:
            planned(*words("grpo", chat_model), f"{key}={{{name}: false}}")
        assert (error.value.where, error.value.hint) == (f"{key}.{name} (command line)", f"'~{key}.{name}'{hint}")
        assert "enable_thinking" in str(error.value.expected)
    assert planned(*words("grpo", chat_model), f"{key}={{enable_thinking: false}}")
    for given, unread in (({"enable_thinkng": False, "colour": 1}, True), ({"enable_thinking": False}, False)):
        written(place, *[{"messages": TALK, "chat_template_kwargs": given}] * 8)
        told = " ".join(one.text for one in planned(*words("sft", chat_model)).notices)
        assert ("colour, enable_thinkng" in told) is unread


def test_a_path_into_a_renamed_column_has_the_name_of_the_file(chat_model: str, place: Path) -> None:
    """OpenAI's preference files have their prompt below `input`."""
    row = {"input": {"messages": TALK[:1]}, "chosen": [says("5")], "rejected": [says("6")]}
    written(place, *[row] * 8)
    with pytest.raises(DataError) as error:
        planned(*words("dpo", chat_model, "data.rename.prompt=input"))
    assert "data.rename.prompt=input.messages" in str(error.value.advice)
    assert planned(*words("dpo", chat_model, "data.rename.prompt=input.messages"))
