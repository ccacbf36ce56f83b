"""Rows as people's files and other tools hold them: read as their makers mean them, or refused with what to type.

Each form of a message and each refused value by itself: tests/data/test_dialogues.py, test_learnt_columns.py.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.data.learnt_columns import stand_in
from rlhf_cli.data.loading import load_split
from rlhf_cli.data.source import DataSource
from rlhf_cli.errors import ConfigError, DataError, UserError
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.plan.run_plan import Plan
from rlhf_cli.tables.trl_trainers import TRAINERS
from rlhf_cli.trainers.assemble.trainer import training_rows
from tests.support.planning import planned

Row = dict[str, Any]
Checked = Callable[..., Plan]


def turns(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"from": sender, "value": value} for sender, value in pairs]


def user(text: object) -> Row:
    return {"role": "user", "content": text}


def says(text: object) -> Row:
    return {"role": "assistant", "content": text}


TALK = [user("What is 2 plus 3?"), says("5")]
SHAREGPT = turns(("human", "What is 2 plus 3?"), ("gpt", "5"))
GEMINI = [{"role": role, "parts": [{"text": text}]} for role, text in (("user", "What is 2 plus 3?"), ("model", "5"))]
ANSWERS = {"chosen": [says("5")], "rejected": [says("no idea")]}
PAIR = {"prompt": TALK[:1], **ANSWERS}
FUNCTION = {"name": "look_up", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}
CALL = {"type": "function", "function": {"name": "look_up", "arguments": {"x": 1}}}
CALLED = [user("hi"), says("") | {"tool_calls": [CALL]}, {"role": "tool", "content": "7"}, says("seven")]
EARLIER = {"role": "assistant", "content": None, "function_call": {"name": "look_up", "arguments": '{"x": 1}'}}
GLAIVE = turns(("human", "hi"), ("function_call", json.dumps(CALL["function"])), ("observation", "7"), ("gpt", "seven"))
HH = {"chosen": "\n\nHuman: hi\n\nAssistant: ho", "rejected": "\n\nHuman: hi\n\nAssistant: go away"}
ORCA = {"system": "You are terse.", "question": "What is 2 plus 3?", "chosen": "5", "rejected": "I do not know"}
BOTH = {"chosen": TALK, "rejected": [TALK[0], says("6")]}
ULTRA = {"prompt": "What is 2 plus 3?", **BOTH, "messages": TALK, "score_chosen": 9.0}
SYSTEM = {"role": "system", "content": "Be terse."}
ALPACA = {"instruction": "Add.", "input": "2 plus 3", "output": "5"}
VERL = {"data_source": "sums", "prompt": TALK[:1], "reward_model": {"style": "rule", "ground_truth": "5"}}
UNPAIRED = {"prompt": "2+3?", "completion": "5"}
NAMED = "data.rename.messages=conversation"
WEIGHED = [user("hi"), says("ho") | {"weight": 0}, TALK[0], says("5") | {"weight": 1}]

# whose rows; the trainer; a row; what is typed; what is learnt from
READ: list[tuple[str, str, Row, list[str], Row]] = [
    ("FastChat", "sft", {"id": "0", "conversations": SHAREGPT}, [], {"messages": TALK}),
    (
        *("Firefly", "sft", {"conversation": [{"human": TALK[0]["content"], "assistant": "5"}]}),
        *([NAMED], {"messages": TALK}),
    ),
    ("Gemini", "sft", {"contents": GEMINI}, ["data.rename.messages=contents"], {"messages": TALK}),
    (
        *("OpenAssistant's roles", "sft", {"messages": [{"role": "prompter", "text": TALK[0]["content"]}, TALK[1]]}),
        *([], {"messages": TALK}),
    ),
    (
        *("ms-swift's pairs", "dpo", {"messages": TALK, "rejected_response": "6"}),
        ["data.rename.chosen=messages", "data.rename.rejected=rejected_response", "data.transcripts=true"],
        {"prompt": TALK[:1], "chosen": TALK[1:], "rejected": [says("6")]},
    ),
    (
        *("OpenAI's earlier calls", "sft"),
        {"messages": [CALLED[0], EARLIER, {"role": "function", "content": "7"}, CALLED[3]]},
        *([], {"messages": CALLED}),
    ),
    (
        *("glaive's tools in LLaMA-Factory's form", "sft", {"conversations": GLAIVE, "tools": json.dumps([FUNCTION])}),
        *([], {"messages": CALLED, "tools": [FUNCTION]}),
    ),
    (
        *("LLaMA-Factory's pairs", "dpo"),
        {"conversations": SHAREGPT[:1], "chosen": SHAREGPT[1], "rejected": turns(("gpt", "no idea"))[0]},
        *(["data.rename.prompt=conversations"], PAIR),
    ),
    (
        *("a completion that repeats the prompt of a template", "sft", {"q": TALK[0]["content"], "completion": TALK}),
        *(['data.prompt=[{role: user, content: "{q}"}]'], {"prompt": TALK[:1], "completion": TALK[1:]}),
    ),
    ("UltraFeedback", "dpo", ULTRA, [], BOTH),
    (
        *("orca pairs with their system text", "cpo", ORCA, ["data.prompt={system} {question}"]),
        {"prompt": "You are terse. What is 2 plus 3?", "chosen": "5", "rejected": "I do not know"},
    ),
    (
        *("HH transcripts", "dpo", HH, ["data.transcripts=true"]),
        {"prompt": "\n\nHuman: hi\n\nAssistant:", "chosen": " ho", "rejected": " go away"},
    ),
    (
        *("LLaMA-Factory's KTO", "kto", {"conversations": SHAREGPT, "label": True}),
        *(["data.transcripts=true"], {"prompt": TALK[:1], "completion": TALK[1:], "label": True}),
    ),
    ("labels as text", "kto", UNPAIRED | {"label": "False"}, [], UNPAIRED | {"label": False}),
    (
        *("Alpaca without an input", "sft", ALPACA | {"input": None}),
        ["data.prompt={instruction}\n{input}", "data.rename.completion=output"],
        {"prompt": "Add.\n", "completion": "5"},
    ),
    ("verl", "grpo", VERL, ["data.rename.answer=reward_model.ground_truth"], VERL | {"answer": "5"}),
    (
        *("OpenAI's weights, the last answer alone", "sft", {"messages": WEIGHED}, ["data.transcripts=true"]),
        {"prompt": WEIGHED[:3], "completion": WEIGHED[3:]},
    ),
    (
        *("Open-Thoughts: ShareGPT beside its system text", "sft", {"system": "Be terse.", "conversations": SHAREGPT}),
        *([], {"messages": [SYSTEM, *TALK]}),
    ),
    (
        *("a system text under another name", "sft", {"system": "Be terse.", "messages": TALK}),
        *(["data.rename.unread=system"], {"messages": TALK}),
    ),
]


def words(trainer: str, *typed: str) -> list[str]:
    rewards = ["+reward@rewards.x=brevity"] if trainer == "grpo" else []
    return [f"trainer={trainer}", "model=local", "data=file", "data.path=rows.jsonl", *rewards, *typed]


def written(place: Path, *rows: Row) -> None:
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def checked(chat_model: str, place: Path) -> Checked:
    """`checked("sft", rows, *words)`: the plan of a chat model that learns from these rows."""

    def check(trainer: str, rows: list[Row], *typed: str) -> Plan:
        written(place, *rows)
        return planned(*words(trainer, chat_model, *typed))

    return check


@pytest.fixture
def refusal(checked: Checked) -> Callable[..., UserError]:
    """`refusal("sft", rows, *words)`: the error instead."""

    def refuse(*given: Any) -> UserError:
        with pytest.raises(UserError) as caught:
            checked(*given)
        return caught.value

    return refuse


def learnt(*typed: str) -> Any:
    """What the run learns from."""
    return training_rows(prepare(words(*typed)).experiment)[0]


@pytest.mark.parametrize(("name", "trainer", "row", "typed", "expected"), READ, ids=[case[0] for case in READ])
def test_rows_that_are_read(
    name: str, trainer: str, row: Row, typed: list[str], expected: Row, checked: Checked, chat_model: str
) -> None:
    plan = checked(trainer, [row] * 8, *typed)
    assert learnt(trainer, chat_model, *typed).to_list()[0] == expected
    read = {"system"} if str(SYSTEM) in str(expected) else set()
    assert set(plan.unread).isdisjoint({*expected, *read})


ASKED = "data.prompt='[{role: user, content: \"{prompt}\"}]'"


@pytest.mark.parametrize(
    "noted", [json.dumps, lambda value: str(value).replace("}, {", "}\n {")], ids=["JSON", "numpy"]
)
@pytest.mark.parametrize(
    ("trainer", "answers", "typed"),
    [
        *((name, BOTH, None) for name in ("dpo", "reward", "kto")),
        ("dpo", ANSWERS, ASKED),
        ("kto", {"completion": TALK[1:], "label": True}, ASKED),
        ("sft", {"completion": TALK[1:]}, ASKED),
    ],
)
def test_answers_as_text_of_messages_beside_a_text_prompt(
    noted: Any, trainer: str, answers: Row, typed: str | None, checked: Checked, refusal: Any, chat_model: str
) -> None:
    """They are read as real messages are: with the dialogue that they repeat, or after a prompt of messages."""
    stored = {name: noted(value) if isinstance(value, list) else value for name, value in answers.items()}
    rows, more = [{"prompt": TALK[0]["content"], **stored}] * 8, shlex.split(typed or "")
    if typed is not None:
        assert refusal(trainer, rows).hint == typed
        answers = {"prompt": TALK[:1], **answers}
    checked(trainer, rows, *more)
    assert learnt(trainer, chat_model, *more)[0] == answers


# the trainer; a row; what is to be typed, or None where the value of row 1 is wrong; the chat template
PROMPT_OF = "data.prompt='{instruction} {input}'"
OR_TEXT = ", or trainer.args.dataset_text_field=COLUMN"
REFUSED: list[tuple[str, Row, str | None, str]] = [
    (trainer, row, hint, "qwen2_5")
    for trainer, row, hint in (
        ("dpo", ORCA, "data.rename.prompt=question"),
        ("dpo", {"question": "2+3?"} | ANSWERS, ASKED.replace("prompt}", "question}")),
        ("grpo", {"messages": TALK[:1]}, "data.rename.prompt=messages"),
        ("grpo", {"question": "2+3?"}, "data.rename.prompt=question, or data.prompt='... {question} ...'"),
        ("sft", ALPACA, f"{PROMPT_OF} data.rename.completion=output{OR_TEXT}"),
        ("sft", {"prompt": "q", "The answer, short": "5"}, f"data.rename.completion=COLUMN{OR_TEXT}"),
        ("grpo", {"conversation": TALK}, f"{NAMED} data.transcripts=true"),
        ("dpo", ALPACA | {"chosen": "5", "rejected": "6"}, PROMPT_OF),
        ("sft", UNPAIRED | {"images": []}, "data.rename.picture=images"),
        ("grpo", {"prompt": "2+3?", "image": "cat.png"}, "data.rename.picture=image"),
        ("sft", {"text": "hi", "role": "prompter"}, "data.rename.speaker=role  # learns each text alone"),
        ("sft", {"messages": [*TALK, {"role": "narrator", "content": "the end"}]}, None),
        ("sft", {"messages": [user("2+3?")]}, None),
        ("sft", {"conversations": [*SHAREGPT[:1], SHAREGPT[1] | {"train": False}]}, None),
        ("sft", {"messages": [user([{"type": "image"}, {"type": "text", "text": "who?"}]), says("x")]}, None),
        ("grpo", {"prompt": TALK}, None),
    )
]
REFUSED += [
    ("sft", {"messages": CALLED}, None, "chatml"),
    ("sft", {"messages": TALK, "tools": [FUNCTION]}, None, "chatml"),
    ("sft", {"messages": [TALK[1], TALK[0], TALK[1]]}, None, "gemma3"),
]


@pytest.mark.parametrize(("trainer", "row", "hint", "chat_model"), REFUSED, indirect=["chat_model"])
def test_refused_rows(trainer: str, row: Row, hint: str | None, refusal: Any) -> None:
    error = refusal(trainer, [row] * 4)
    assert isinstance(error, DataError)
    assert ("rows.jsonl" in str(error.where), bool(error.expected)) == (True, True)
    if hint is None:
        assert ("row 1" in str(error.where), bool(error.got)) == (True, True)
    else:
        assert hint in (error.hint, str(error.hint).partition("  # no")[0]) or hint in str(error.advice)


def test_a_bad_row_behind_sound_ones_is_named(refusal: Any) -> None:
    for sound, late in ((TALK, [*TALK, {"role": "narrator", "content": "a"}]), (json.dumps(TALK), "no JSON")):
        error = refusal("sft", [{"messages": sound}] * 2 + [{"messages": late}])
        assert (type(error), "row 3" in str(error.where)) == (DataError, True)
    error = refusal("sft", [{"body": "a"}, {"body": " "}], "trainer.args.dataset_text_field=body")
    assert "row 2" in str(error.where)


def test_a_dialogue_is_split_whatever_the_first_rows_hold(checked: Checked, chat_model: str) -> None:
    """A table's types are written a thousand rows at a time."""
    call = says("") | {"tool_calls": [CALL]}
    late = {"messages": [*TALK, TALK[0], call]}
    checked("sft", [{"messages": TALK}] * 1001 + [late], "data.transcripts=true")
    rows = learnt("sft", chat_model, "data.transcripts=true")
    assert rows[1001] == {"prompt": [*TALK, TALK[0]], "completion": [call]}


def test_a_path_into_a_column_keeps_its_type_and_a_mixture_may_have_two_forms(place: Path) -> None:
    """Where the first thousand values are null, too."""
    written(place, *[{"prompt": "2+3?", "extra": {"a": None}}] * 1001, {"prompt": "2+3?", "extra": {"a": "5"}})
    rows = load_split([DataSource(path="rows.jsonl", rename={"answer": "extra.a"})], seed=0)
    assert (rows[0]["answer"], rows[1001]["answer"]) == (None, "5")
    (place / "mine.jsonl").write_text((json.dumps({"messages": TALK}) + "\n") * 4)
    written(place, *[{"messages": SHAREGPT}] * 4)
    sources = [DataSource(path=name, trainer=TRAINERS["SFTTrainer"]) for name in ("mine.jsonl", "rows.jsonl")]
    assert {json.dumps(row) for row in load_split(sources, seed=0).to_list()} == {json.dumps({"messages": TALK})}


def test_unread_columns(checked: Checked, place: Path) -> None:
    (place / "rewards.py").write_text(
        "def one(completions, question, **kw): ...\ndef two(completions, question): ...\n"
    )
    one, two = (["~rewards.x.args", f"rewards.x.fn=./rewards.py:{name}"] for name in ("one", "two"))
    for trainer, typed, unread in (
        ("dpo", [], "system question margin"),
        ("reward", [], "system question margin"),
        ("reward", ["reward_model.margin.column=margin"], "system question"),
        ("grpo", two, "system chosen rejected margin"),
        ("grpo", one, ""),
        ("grpo", [*two, "data.prompt={system} {question}"], "chosen rejected margin"),
    ):
        plan = checked(trainer, [ORCA | {"prompt": "2+3?", "margin": 1.0}] * 8, *typed)
        assert plan.unread == tuple(unread.split()), (trainer, typed)


def of_data(plan: Plan) -> list[str]:
    return [notice.text for notice in plan.notices if notice.subject == "data"]


def test_notices_about_conversations(checked: Checked) -> None:
    """Of ShareGPT's keys in the first row, and of rows that end without an answer."""
    (text,) = of_data(checked("sft", [{"conversations": SHAREGPT}, *[{"conversations": TALK}] * 7]))
    assert (text.startswith("conversations: "), text.endswith("user, assistant")) == (True, True)
    whole, unanswered = {"messages": TALK}, {"messages": [*TALK, user("thanks")]}
    (text,) = of_data(checked("sft", [whole] * 5 + [unanswered] * 3))
    assert (text.startswith("3 of 8 conversations"), "row 6;" in text) == (True, True)
    assert "trainer.args.assistant_only_loss=true" in text
    assert of_data(checked("sft", [whole] * 8)) == []


THOUGHT = {"messages": [TALK[0], says("5") | {"reasoning_content": "two, three"}]}


@pytest.mark.parametrize(
    ("trainer", "row", "chat_model", "is_told"),
    [
        ("sft", THOUGHT, "qwen2_5", True),
        ("dpo", {**PAIR, "chosen": [says("5") | {"thinking": "two, three"}]}, "qwen2_5", True),
        ("sft", THOUGHT, "qwen3", False),
        ("sft", {"messages": [TALK[0], says("5") | {"reasoning": "two, three"}]}, "qwen3", False),
        ("sft", {"messages": TALK}, "qwen2_5", False),
        ("dpo", {"prompt": "2+3?", "chosen": "2+3? 5", "rejected": "2+3? 6"}, "qwen2_5", True),
        ("sft", {"prompt": "2+3?", "completion": "2+3? 5"}, "qwen2_5", True),
        ("sft", UNPAIRED, "qwen2_5", False),
        ("sft", {"prompt": TALK[:1], "completion": [user("2+4?"), says("5")]}, "qwen2_5", True),
        ("dpo", {"chosen": "I think 5", "rejected": "I do not", "history": "2 + 3?"}, "qwen2_5", True),
        ("dpo", {"chosen": "2 + 3? 5", "rejected": "2 + 3? 6", "history": "2 + 3?"}, "qwen2_5", False),
        ("grpo", {"prompt": TALK[:1], "tools": [FUNCTION]}, "qwen2_5", True),
        ("kto", UNPAIRED | {"label": False}, "qwen2_5", True),
    ],
    indirect=["chat_model"],
)
def test_what_is_left_out_or_read_twice_gives_a_notice(trainer: str, row: Row, is_told: bool, checked: Checked) -> None:
    """Reasoning the template leaves out, texts that repeat their prompt, tools GRPO ignores, labels all alike."""
    assert len(of_data(checked(trainer, [row] * 4))) == is_told


def test_two_hundred_rows_are_looked_at_for_what_is_read_twice_or_left_out(checked: Checked) -> None:
    repeats, bare = ({"prompt": "2+3?", "completion": text} for text in ("2+3? 5", "5"))
    talk = {"messages": TALK}
    for first, number, last, told in ((repeats, 200, bare, 1), (repeats, 199, bare, 0), (talk, 199, THOUGHT, 1)):
        assert len(of_data(checked("sft", [first] * number + [last]))) == told
    assert of_data(checked("sft", [talk] * 200 + [THOUGHT])) == []


@pytest.mark.parametrize("chat_model", ["chatml"], indirect=True)
@pytest.mark.parametrize("trainer", ["sft", "dpo", "grpo"])
def test_roles_that_few_templates_know_give_a_notice_and_misspelt_ones_an_error(
    trainer: str, checked: Checked, refusal: Any
) -> None:
    def row(role: str) -> Row:
        talk = [{"role": role, "content": "a"}, TALK[0]]
        return {"sft": {"messages": [*talk, says("b")]}, "dpo": {**PAIR, "prompt": talk}}.get(trainer, {"prompt": talk})

    for role, others in (("developer", []), ("Chatbot", []), ("narrator", ["narrator"])):
        texts = [notice.text for notice in checked(trainer, [row("user")] * 300 + [row(role)]).notices]
        assert [text.split(":")[0].split()[-1] for text in texts if text.startswith("messages by")] == others
    error = refusal(trainer, [row("user"), row("asistant")])
    assert ("row 2" in str(error.where), "assistant?" in str(error.got)) == (True, True)


@pytest.mark.parametrize(
    ("row", "right"),
    [
        ({"extra_info": {"answer": "2 + 3 is 5. #### 5"}, **VERL}, "reward_model.ground_truth"),
        ({"prompt": "2+3?", "ground_truth": "5"}, "ground_truth"),
        ({"prompt": "2+3?", "extra_info": {"answer": "5"}}, "extra_info.answer"),
    ],
)
def test_the_ground_truth_is_the_answer(row: Row, right: str, refusal: Any) -> None:
    error = refusal("grpo", [row] * 8, "+reward@rewards.right=numeric_answer")
    assert error.hint == f"data.rename.answer={right}"
    assert stand_in("solution", [*row], first=row) == right  # trl_accuracy reads it


OPENAI = {
    "input": {"messages": TALK[:1], "tools": []},
    "preferred_output": TALK[1:],
    "non_preferred_output": [says("6")],
}
WEBGPT = {"question": {"dataset": "eli5", "full_text": "2+3?"}, "chosen": "5", "rejected": "6"}
STEPS = {"prompt": "2+3?", "completions": ["2+3", "is 5"], "labels": [True, True]}
ANSWER, QUESTION = "data.rename.completion=COLUMN", "data.rename.prompt=question.full_text"
OPENAIS = "data.rename.chosen=preferred_output data.rename.rejected=non_preferred_output data.rename.prompt=input"


@pytest.mark.parametrize(
    ("trainer", "row", "typed"),
    [
        ("dpo", OPENAI, f"{OPENAIS}.messages"),
        ("grpo", OPENAI, "data.rename.prompt=input.messages"),
        ("grpo", WEBGPT, QUESTION),
        ("dpo", WEBGPT | ANSWERS, f"{QUESTION} {ASKED}"),
        ("kto", STEPS, f"{ANSWER} data.rename.label=COLUMN"),
        ("sft", {"conversation": "Hi. Ho."}, f"data.rename.prompt=COLUMN {ANSWER}"),
        ("sft", {"Task": "2+3?", "reply": "5"}, "data.rename.prompt=Task data.rename.completion=reply"),
        ("sft", {"conversation": json.dumps(TALK)}, NAMED),
        ("sft", {"question": 5, "answer": "5"}, "data.rename.prompt=COLUMN data.rename.completion=answer"),
    ],
)
def test_a_name_is_advised_only_for_what_can_be_read(
    trainer: str, row: Row, typed: str, checked: Checked, refusal: Any
) -> None:
    hint, _, needed = str(refusal(trainer, [row] * 8).hint).partition("  # ")
    assert (hint.split(", or")[0], bool(needed)) == (typed, "COLUMN" in typed)
    if not needed:
        assert checked(trainer, [row] * 8, *shlex.split(typed))


def test_the_path_into_an_object_leads_to_what_can_be_read(refusal: Any) -> None:
    """To its text, or to OpenAI's messages below `input`."""
    assert str(refusal("grpo", [WEBGPT] * 8, "data.rename.prompt=question").advice).endswith(QUESTION)
    assert "data.rename.prompt=input.messages" in str(refusal("dpo", [OPENAI] * 8, *OPENAIS.split()).advice)


@pytest.mark.parametrize(
    ("row", "key", "value", "hint"),
    [
        ({"messages": TALK}, "completion_only_loss", "true", "{}=null trainer.args.assistant_only_loss=true"),
        ({"text": "2+3?"}, "completion_only_loss", "true", "{}=null"),
        (UNPAIRED, "completion_only_loss", "true", None),
        ({"text": "2+3?"}, "assistant_only_loss", "true", "{}=false"),
        ({"messages": TALK}, "assistant_only_loss", "true", None),
        ({"messages": TALK, "problem": "2+3?"}, "dataset_text_field", "problem", "data.rename.unread=messages"),
        ({"problem": "2+3?"}, "dataset_text_field", "problem", None),
        ({"text": "2+3?"}, "dataset_kwargs", "{skip_prepare_dataset: true}", "{}=null"),
        ({"input_ids": [1, 2]}, "dataset_kwargs", "{skip_prepare_dataset: true}", None),
    ],
)
def test_settings_of_sft_that_do_not_fit_the_rows(
    row: Row, key: str, value: str, hint: str | None, checked: Checked, refusal: Any
) -> None:
    key = f"trainer.args.{key}"
    if hint is not None:
        error = refusal("sft", [row] * 4, f"{key}={value}")
        assert (type(error), error.where, error.hint) == (ConfigError, f"{key} (command line)", hint.format(key))
    checked("sft", [row] * 4, f"{key}={value}", *(hint or "").format(key).split())


def test_a_system_column_of_the_prompt_is_not_called_unread(checked: Checked) -> None:
    turns = "[{role: system, content: '{system}'}, {role: user, content: '{question}'}]"
    row = {"system": "Be brief.", "question": "2+3?", "completion": "5"}
    assert of_data(checked("sft", [row] * 4, f"data.prompt={turns}")) == []


def test_a_name_with_blanks_or_signs_can_be_typed(checked: Checked, refusal: Any) -> None:
    for name in (" completion", "Completion, ok"):
        rows = [{"prompt": "q", name: "a"}] * 4
        assert checked("sft", rows, *shlex.split(str(refusal("sft", rows).command))).num_rows == 4


def test_answers_that_are_all_empty_and_sources_that_disagree_are_refused(place: Path) -> None:
    """Only where a reward reads them; it was trained on nothing, or refused by the run."""
    sizes = ["trainer.args.per_device_train_batch_size=8", "trainer.args.num_generations=2"]
    words_of = ["exp=quickstart", "~rewards.correct", "~expect", *sizes]
    for name, answer in (("text", "2"), ("number", 2), ("null", None), ("empty", "")):
        (place / f"{name}.jsonl").write_text((json.dumps({"prompt": "1+1=", "answer": answer}) + "\n") * 9)
    mix = ["~data.world", "~data.args", "data.mix.a.path=text.jsonl"]
    for where, typed in (
        ("data.mix.b", [*mix, "data.mix.b.path=number.jsonl"]),
        *(("data", ["data=file", f"data.path={name}.jsonl"]) for name in ("null", "empty")),
    ):
        planned(*words_of, *typed)
        with pytest.raises(DataError) as caught:
            planned(*words_of, *typed, "+reward@rewards.match=exact_match")
        assert caught.value.where == where
        said = ("empty" in str(caught.value.got), "rewards.match" in str(caught.value.expected))
        assert said == (where == "data",) * 2
    planned(*words_of, *mix, "data.mix.b.path=null.jsonl", "+reward@rewards.match=exact_match")


@pytest.mark.parametrize("chat_model", ["qwen3"], indirect=True)
def test_a_variable_that_the_chat_template_does_not_read(checked: Checked, refusal: Any) -> None:
    key, prompts = "trainer.args.chat_template_kwargs", [{"prompt": TALK[:1]}] * 8
    for name, hint in (("enable_thinkng", f" {key}.enable_thinking=false"), ("colour", "")):
        error = refusal("grpo", prompts, f"{key}={{{name}: false}}")
        assert (error.where, error.hint) == (f"{key}.{name} (command line)", f"'~{key}.{name}'{hint}")
        assert "enable_thinking" in str(error.expected)
    assert checked("grpo", prompts, f"{key}={{enable_thinking: false}}")
    for given, unread in (({"enable_thinkng": False, "colour": 1}, True), ({"enable_thinking": False}, False)):
        made = checked("sft", [{"messages": TALK, "chat_template_kwargs": given}] * 8)
        assert ("colour, enable_thinkng" in " ".join(one.text for one in made.notices)) is unread


@pytest.mark.parametrize(
    ("words", "is_told"),
    [
        ("trainer=kto", True),
        ("trainer=kto model.lora.r=2", False),
        ("trainer=kto data.eval.fraction=0.5", False),
        ("trainer=sft trainer.args.train_sampling_strategy=sequential", True),
        ("trainer=sft", False),
    ],
)
def test_a_seed_that_decides_nothing_is_told(words: str, is_told: bool, place: Path) -> None:
    """TRL's KTOTrainer goes through the rows in the order of the file."""
    label = {"label": True} if "kto" in words else {}
    rows = [{"prompt": f"{number}+3?", "completion": "5"} | label for number in range(8)]
    written(place, *rows, *[row | {"label": False} for row in rows if label])
    made = planned(*words.split(), "model=tiny", "data=file", "data.path=rows.jsonl")
    assert [notice.subject for notice in made.notices].count("seed") == is_told
