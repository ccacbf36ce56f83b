"""Prompts from templates, and columns that a template or a rename lacks."""

from __future__ import annotations

import pytest

from rlhf_cli.data.peeking import Preview, prepare_preview
from rlhf_cli.data.preparing import render, template_columns
from rlhf_cli.data.source import DataSource

ROW = {"question": "2+2?", "answer": "{question}", "n": 3, "none": None, "chat": [{"role": "user"}]}


def test_a_text_gives_a_plain_prompt_and_braces_in_values_stay() -> None:
    assert render("Q{n}: {question}\n{{json}} A:{answer}", ROW) == "Q3: 2+2?\n{json} A:{question}"


def test_messages_give_a_conversational_prompt() -> None:
    template = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "{question}"}]
    expected = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    assert render(template, ROW) == expected
    assert template_columns(template) == {"question"}
    assert template_columns("{a} {{b}} {c}") == {"a", "c"}


def test_a_missing_column_is_named_with_key_columns_and_neighbour(refusal) -> None:
    error = refusal(render, "{quesion}", ROW)
    assert (error.where, error.hint) == ("data.prompt", "question")
    messages = [{"role": "a", "content": ""}, {"role": "b", "content": "{x}"}]
    assert refusal(render, messages, ROW).where == "data.prompt[1]"


@pytest.mark.parametrize("text", ["{n.__class__}", "{chat[0]}", "{n!r}", "{}", '{"json": 1', "}", "{question"])
def test_a_field_is_a_plain_column_name_and_other_braces_are_doubled(text: str, refusal) -> None:
    error = refusal(template_columns, text)
    assert (error.where, error.got) == ("data.prompt", text)
    assert "{" in error.advice


def preview(*columns: str) -> Preview:
    return Preview(columns, [], 0, "here")


def after(columns: Preview, rename: dict[str, str], prompt: str | None, name: str = "data") -> tuple[str, ...]:
    return prepare_preview(DataSource(path="x.csv", rename=rename, name=name), columns, prompt)[0]


def test_columns_after_rename_and_template() -> None:
    assert after(preview("q", "a"), {}, None) == ("q", "a")
    assert after(preview("q", "a"), {"question": "q"}, "{question}") == ("question", "a", "prompt")
    assert after(preview("prompt", "a"), {}, "Q: {prompt}") == ("prompt", "a")
    assert after(preview("q", "a"), {"a": "q", "q": "a"}, None) == ("a", "q")
    assert after(preview("q", "a"), {"gold": "a.b.0"}, None) == ("q", "a", "gold")
    assert after(preview(), {"question": "q"}, "{question}") == ()


def test_columns_that_rename_or_template_lack(refusal) -> None:
    error = refusal(after, preview("qestion", "a"), {"prompt": "question"}, None, name="data.mix.x")
    assert (error.where, error.hint) == ("data.mix.x.rename.prompt", "data.mix.x.rename.prompt=qestion")
    # The old name is gone after a rename.
    error = refusal(after, preview("q", "a"), {"question": "q"}, "{q}")
    assert (error.where, error.hint) == ("data.rename.question", "data.prompt='{question}'")
    assert refusal(after, preview(), {}, "{q.x}").where == "data.prompt"
