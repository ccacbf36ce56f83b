"""Rows as other tools leave them: what is read, what is told, and what to type instead."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.data.learnt_columns import stand_in
from rlhf_cli.errors import ConfigError, DataError
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.trainers.assemble.trainer import training_rows
from tests.plan.test_shapes_of_data import PAIR, TALK, VERL, says, words, written
from tests.support.planning import planned

ASKED = "data.prompt='[{role: user, content: \"{prompt}\"}]'"
BOTH = {"chosen": TALK, "rejected": [TALK[0], says("6")]}


@pytest.mark.parametrize("noted", [json.dumps, str, lambda value: str(value).replace("}, {", "}\n {")])
@pytest.mark.parametrize(
    ("trainer", "answers", "typed"),
    [
        *((name, BOTH, None) for name in ("dpo", "reward", "orpo", "kto")),
        *((name, {"chosen": PAIR["chosen"], "rejected": PAIR["rejected"]}, ASKED) for name in ("dpo", "reward", "kto")),
        ("kto", {"completion": TALK[1:], "label": True}, ASKED),
        ("sft", {"completion": TALK[1:]}, ASKED),
    ],
)
def test_answers_as_text_of_messages_beside_a_text_prompt(
    noted: Any, trainer: str, answers: dict[str, Any], typed: str | None, chat_model: str, place: Path
) -> None:
    """They are read as real messages are: with the dialogue that they repeat, or after a prompt of messages."""
    stored = {name: noted(value) if isinstance(value, list) else value for name, value in answers.items()}
    written(place, *[{"prompt": TALK[0]["content"], **stored}] * 8)
    everything = words(trainer, chat_model)
    if typed is not None:
        with pytest.raises(DataError) as error:
            planned(*everything)
        assert error.value.hint == typed
        everything += shlex.split(typed)
        answers = {"prompt": TALK[:1], **answers}
    planned(*everything)
    assert training_rows(prepare(everything).experiment)[0][0] == answers


@pytest.mark.parametrize("chat_model", ["chatml"], indirect=True)
def test_roles_that_few_templates_know_give_a_notice_and_misspelt_ones_an_error(chat_model: str, place: Path) -> None:
    def row(trainer: str, role: str) -> dict[str, Any]:
        talk = [{"role": role, "content": "a"}, TALK[0]]
        return {"sft": {"messages": [*talk, says("b")]}, "dpo": {**PAIR, "prompt": talk}}.get(trainer, {"prompt": talk})

    for trainer in ("sft", "dpo", "grpo"):
        for role, others in (("developer", []), ("Chatbot", []), ("narrator", ["narrator"])):
            written(place, *[row(trainer, "user")] * 300, row(trainer, role))
            texts = [notice.text for notice in planned(*words(trainer, chat_model)).notices]
            told = [text.split(":")[0].split()[-1] for text in texts if text.startswith("messages by")]
            assert told == others
        written(place, row(trainer, "user"), row(trainer, "asistant"))
        with pytest.raises(DataError) as error:
            planned(*words(trainer, chat_model))
        assert ("row 2" in str(error.value.where), "assistant?" in str(error.value.got)) == (True, True)


@pytest.mark.parametrize(
    ("row", "right"),
    [
        ({"extra_info": {"answer": "2 + 3 is 5. #### 5"}, **VERL}, "reward_model.ground_truth"),
        ({"prompt": "2+3?", "ground_truth": "5"}, "ground_truth"),
        ({"prompt": "2+3?", "extra_info": {"answer": "5"}}, "extra_info.answer"),
    ],
)
def test_the_ground_truth_is_the_answer(row: dict[str, Any], right: str, chat_model: str, place: Path) -> None:
    written(place, *[row] * 8)
    with pytest.raises(DataError) as error:
        planned(*words("grpo", chat_model), "+reward@rewards.right=numeric_answer")
    assert error.value.hint == f"data.rename.answer={right}"
    assert stand_in("solution", [*row], first=row) == right  # trl_accuracy reads it


OPENAI = {
    "input": {"messages": TALK[:1], "tools": []},
    "preferred_output": TALK[1:],
    "non_preferred_output": [says("6")],
}
WEBGPT = {"question": {"dataset": "eli5", "full_text": "2+3?"}, "chosen": "5", "rejected": "6"}
RATED = {"instruction": "2+3?", "completions": [{"model": "x", "response": "5"}]}
STEPS = {"prompt": "2+3?", "completions": ["2+3", "is 5"], "labels": [True, True]}


@pytest.mark.parametrize(
    ("trainer", "row", "typed"),
    [
        (
            *("dpo", OPENAI),
            "data.rename.chosen=preferred_output data.rename.rejected=non_preferred_output "
            "data.rename.prompt=input.messages",
        ),
        ("grpo", OPENAI, "data.rename.prompt=input.messages"),
        ("dpo", WEBGPT, "data.rename.prompt=question.full_text"),
        ("grpo", WEBGPT, "data.rename.prompt=question.full_text"),
        (
            *("dpo", WEBGPT | {"chosen": TALK[1:], "rejected": [says("6")]}),
            f"data.rename.prompt=question.full_text {ASKED}",
        ),
        ("sft", RATED, "data.rename.prompt=instruction data.rename.completion=EXISTING_COLUMN"),
        ("sft", STEPS, "data.rename.completion=EXISTING_COLUMN"),
        ("kto", STEPS, "data.rename.completion=EXISTING_COLUMN data.rename.label=EXISTING_COLUMN"),
        (
            "sft",
            {"conversation": "Hi. Ho."},
            "data.rename.prompt=EXISTING_COLUMN data.rename.completion=EXISTING_COLUMN",
        ),
        ("sft", {"Task": "2+3?", "reply": "5"}, "data.rename.prompt=Task data.rename.completion=reply"),
        ("sft", {"conversation": json.dumps(TALK)}, "data.rename.messages=conversation"),
        ("sft", {"question": 5, "answer": "5"}, "data.rename.prompt=EXISTING_COLUMN data.rename.completion=answer"),
    ],
)
def test_a_name_is_advised_only_for_what_can_be_read(
    trainer: str, row: dict[str, Any], typed: str, chat_model: str, place: Path
) -> None:
    written(place, *[row] * 8)
    with pytest.raises(DataError) as error:
        planned(*words(trainer, chat_model))
    assert str(error.value.hint).split(", or")[0] == typed
    if "EXISTING_COLUMN" not in typed:
        assert planned(*words(trainer, chat_model), *shlex.split(typed))


def test_the_path_into_an_object_leads_to_its_text(chat_model: str, place: Path) -> None:
    written(place, *[WEBGPT] * 8)
    with pytest.raises(DataError) as error:
        planned(*words("grpo", chat_model), "data.rename.prompt=question")
    assert str(error.value.advice).endswith("data.rename.prompt=question.full_text")


@pytest.mark.parametrize(
    ("row", "key", "value", "hint"),
    [
        ({"messages": TALK}, "completion_only_loss", "true", "{}=null trainer.args.assistant_only_loss=true"),
        ({"text": "2+3?"}, "completion_only_loss", "true", "{}=null"),
        ({"prompt": "2+3?", "completion": "5"}, "completion_only_loss", "true", None),
        ({"text": "2+3?"}, "assistant_only_loss", "true", "{}=false"),
        ({"messages": TALK}, "assistant_only_loss", "true", None),
        ({"messages": TALK, "problem": "2+3?"}, "dataset_text_field", "problem", "data.rename.unread=messages"),
        ({"problem": "2+3?"}, "dataset_text_field", "problem", None),
        ({"text": "2+3?"}, "dataset_kwargs", "{skip_prepare_dataset: true}", "{}=null"),
        ({"input_ids": [1, 2]}, "dataset_kwargs", "{skip_prepare_dataset: true}", None),
    ],
)
def test_settings_of_sft_that_do_not_fit_the_rows(
    row: dict[str, Any], key: str, value: str, hint: str | None, chat_model: str, place: Path
) -> None:
    written(place, *[row] * 4)
    key = f"trainer.args.{key}"
    if hint is None:
        planned(*words("sft", chat_model, f"{key}={value}"))
        return
    with pytest.raises(ConfigError) as caught:
        planned(*words("sft", chat_model, f"{key}={value}"))
    assert (caught.value.where, caught.value.hint) == (f"{key} (command line)", hint.format(key))
    planned(*words("sft", chat_model, f"{key}={value}", *caught.value.hint.split()))


def test_a_system_column_of_the_prompt_is_not_called_unread(chat_model: str, place: Path) -> None:
    row = {"system": "Be brief.", "question": "2+3?", "completion": "5"}
    written(place, *[row] * 4)
    turns = "[{role: system, content: '{system}'}, {role: user, content: '{question}'}]"
    assert planned(*words("sft", chat_model, f"data.prompt={turns}")).notices == ()


@pytest.mark.parametrize(
    ("words", "is_told"),
    [
        ("trainer=kto", True),
        ("trainer=kto model.lora.r=2", False),
        ("trainer=kto data.eval.fraction=0.5", False),
        ("trainer=sft trainer.args.train_sampling_strategy=sequential ~label", True),
        ("trainer=sft ~label", False),
    ],
)
def test_a_seed_that_decides_nothing_is_told(words: str, is_told: bool, place: Path) -> None:
    """TRL's KTOTrainer goes through the rows in the order of the file."""
    row = {"prompt": "2+3?", "completion": "5"} | ({} if "~label" in words else {"label": True})
    written(place, *[row | {"prompt": f"{n}+3?"} for n in range(8)], *[row | {"label": False}] * 8 * ("label" in row))
    typed = [word for word in words.split() if word != "~label"]
    made = planned(*typed, "model=tiny", "data=file", "data.path=rows.jsonl")
    assert [notice.subject for notice in made.notices].count("seed") == is_told
