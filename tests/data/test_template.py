"""Prompts from templates: values filled in as they are, and columns that a template lacks named."""

from __future__ import annotations

import pytest

from rlhf_cli.data.peeking import Preview, column_names_after
from rlhf_cli.data.source import DataSource
from rlhf_cli.data.template import render, template_columns

ROW = {"question": "2+2?", "answer": "{question}", "n": 3, "none": None, "chat": [{"role": "user"}]}


def test_a_text_gives_a_plain_prompt_and_values_are_not_read_as_templates() -> None:
    assert render("Q{n}: {question}\n{{json}} A:{answer}", ROW) == "Q3: 2+2?\n{json} A:{question}"


def test_messages_give_a_conversational_prompt() -> None:
    template = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "{question}"}]
    expected = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    assert render(template, ROW) == expected
    assert template_columns(template) == {"question"}
    assert template_columns("{a} {{b}} {c}") == {"a", "c"}


def test_a_missing_column_is_named_with_key_columns_and_neighbour(refusal) -> None:
    message = refusal(render, "{quesion}", ROW)
    assert "no column 'quesion'" in message
    assert "where:    data.prompt" in message
    assert "question, answer, n" in message
    assert message.endswith("try:      question")
    assert "data.prompt[1]" in refusal(render, [{"role": "a", "content": ""}, {"role": "b", "content": "{x}"}], ROW)


@pytest.mark.parametrize("field", ["{n.__class__}", "{chat[0]}", "{n!r}", "{}"])
def test_only_plain_fields(field: str, refusal) -> None:
    message = refusal(render, f"x {field}", ROW)
    assert "plain column name" in message
    assert field in message
    assert "plain column name" in refusal(template_columns, f"x {field}")


@pytest.mark.parametrize("template", ['{"json": 1', "}", "{question"])
def test_single_braces(template: str, refusal) -> None:
    assert "{{ and }}" in refusal(template_columns, template)


def preview(*columns: str) -> Preview:
    return Preview(columns, [], 0, "here")


def after(columns: Preview, rename: dict[str, str], prompt: str | None, name: str = "data") -> tuple[str, ...]:
    return column_names_after(DataSource(path="x.csv", rename=rename, name=name), columns, prompt)


def test_columns_after_rename_and_template() -> None:
    assert after(preview("q", "a"), {}, None) == ("q", "a")
    assert after(preview("q", "a"), {"question": "q"}, "{question}") == ("question", "a", "prompt")
    assert after(preview("prompt", "a"), {}, "Q: {prompt}") == ("prompt", "a")
    assert after(preview("q", "a"), {"a": "q", "q": "a"}, None) == ("a", "q")
    assert after(preview("q", "a"), {"gold": "a.b.0"}, None) == ("q", "a", "gold")
    assert after(preview(), {"question": "q"}, "{question}") == ()


def test_columns_that_rename_or_template_lack(refusal) -> None:
    message = refusal(after, preview("qestion", "a"), {"prompt": "question"}, None, name="data.mix.x")
    assert "no column 'question'" in message
    assert "where:    data.mix.x.rename.prompt" in message
    assert message.endswith("try:      data.mix.x.rename.prompt=qestion")
    # The old name is gone after a rename.
    message = refusal(after, preview("q", "a"), {"question": "q"}, "{q}")
    assert "the column 'q' is called 'question' here" in message
    assert "where:    data.rename.question" in message
    assert message.endswith("try:      data.prompt='{question}'")
    assert "plain column name" in refusal(after, preview(), {}, "{q.x}")
