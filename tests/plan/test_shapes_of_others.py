"""What other tools write beside the columns or under other names: read as meant, or refused with what to type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.errors import ConfigError, DataError
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.trainers.assemble.trainer import training_rows
from tests.plan.test_shapes_of_data import ALPACA, SHAREGPT, TALK, planned, says, words, written

SYSTEM = {"role": "system", "content": "Be terse."}

READ: list[tuple[str, str, dict[str, Any], list[str], dict[str, Any]]] = [
    (
        "Open-Thoughts: ShareGPT beside its system text",
        "sft",
        {"system": "Be terse.", "conversations": SHAREGPT},
        [],
        {"messages": [SYSTEM, *TALK]},
    ),
    (
        "prompts beside their system text",
        "grpo",
        {"system": "Be terse.", "prompt": TALK[:1]},
        [],
        {"system": "Be terse.", "prompt": [SYSTEM, *TALK[:1]]},
    ),
    (
        "whole pairs beside their system text, once",
        "dpo",
        {"system_prompt": "Be terse.", "chosen": TALK, "rejected": [SYSTEM, TALK[0], says("6")]},
        [],
        {"chosen": [SYSTEM, *TALK], "rejected": [SYSTEM, TALK[0], says("6")]},
    ),
    (
        "a system text under another name",
        "sft",
        {"system": "Be terse.", "messages": TALK},
        ["data.rename.unread=system"],
        {"messages": TALK},
    ),
    (
        "OpenAssistant's roles",
        "sft",
        {"messages": [{"role": "prompter", "text": TALK[0]["content"]}, TALK[1]]},
        [],
        {"messages": TALK},
    ),
    ("WildChat", "sft", {"conversation": TALK}, ["data.rename.messages=conversation"], {"messages": TALK}),
    (
        "Countdown's numbers",
        "grpo",
        {"nums": [2, 3], "target": 5},
        ["data.prompt='Make {target} of {nums}.'"],
        {"nums": [2, 3], "target": 5, "prompt": "Make 5 of [2, 3]."},
    ),
]


@pytest.mark.parametrize(
    ("trainer", "row", "typed", "expected"), [case[1:] for case in READ], ids=[case[0] for case in READ]
)
def test_rows_that_are_read(
    trainer: str, row: dict[str, Any], typed: list[str], expected: dict[str, Any], chat_model: str, place: Path
) -> None:
    written(place, *[row] * 8)
    everything = words(trainer, chat_model, *typed)
    plan = planned(*everything)
    assert training_rows(prepare(everything).experiment)[0].to_list()[0] == expected
    read = {"system", "system_prompt"} if str(SYSTEM) in str(expected) else set()
    assert set(plan.unread).isdisjoint({*expected, *read})


@pytest.mark.parametrize(
    ("trainer", "row", "hint"),
    [
        ("sft", {"conversation": TALK}, "data.rename.messages=conversation, or trainer.args.dataset_text_field=COLUMN"),
        ("grpo", {"conversation": TALK}, "data.rename.messages=conversation data.transcripts=true"),
        (
            "kto",
            {"conversation": TALK, "kto_tag": True},
            "data.rename.messages=conversation data.transcripts=true data.rename.label=kto_tag",
        ),
        ("dpo", ALPACA | {"chosen": "5", "rejected": "6"}, "data.prompt='{instruction} {input}'"),
        ("sft", {"text": "hi", "role": "prompter"}, "data.rename.speaker=role  # learns each text alone"),
    ],
)
def test_refused_rows(trainer: str, row: dict[str, Any], hint: str, chat_model: str, place: Path) -> None:
    written(place, *[row] * 4)
    with pytest.raises(DataError) as error:
        planned(*words(trainer, chat_model))
    assert error.value.hint == hint


@pytest.mark.parametrize("chat_model", ["qwen3"], indirect=True)
def test_a_variable_that_the_chat_template_does_not_read(chat_model: str, place: Path) -> None:
    written(place, *[{"prompt": TALK[:1]}] * 8)
    key = "trainer.args.chat_template_kwargs"
    for name, hint in (("enable_thinkng", f" {key}.enable_thinking=false"), ("colour", "")):
        with pytest.raises(ConfigError) as error:
            planned(*words("grpo", chat_model), f"{key}={{{name}: false}}")
        assert (error.value.where, error.value.hint) == (f"{key}.{name} (command line)", f"'~{key}.{name}'{hint}")
    assert planned(*words("grpo", chat_model), f"{key}={{enable_thinking: false}}")


def test_a_path_into_a_renamed_column_has_the_name_of_the_file(chat_model: str, place: Path) -> None:
    """OpenAI's preference files have their prompt below `input`."""
    row = {"input": {"messages": TALK[:1]}, "chosen": [says("5")], "rejected": [says("6")]}
    written(place, *[row] * 8)
    with pytest.raises(DataError) as error:
        planned(*words("dpo", chat_model, "data.rename.prompt=input"))
    assert "data.rename.prompt=input.messages" in str(error.value.advice)
    assert planned(*words("dpo", chat_model, "data.rename.prompt=input.messages"))
