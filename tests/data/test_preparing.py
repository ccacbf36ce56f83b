"""Prompts from templates, columns that a template or a rename lacks, and rows that a number keeps or orders."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rlhf_cli.cli import main
from rlhf_cli.data.loading import load_split
from rlhf_cli.data.peeking import Preview, first_rows, peek, prepare_preview
from rlhf_cli.data.preparing import render, take_nested, template_columns
from rlhf_cli.data.source import DataSource

ROW = {"question": "2+2?", "answer": "{question}", "n": 3, "none": None, "chat": [{"role": "user"}], "list": [2, 3]}


def test_a_template_of_text_gives_a_plain_prompt_and_one_of_messages_a_conversation() -> None:
    assert render("Q{n}: {question}\n{{json}} A:{answer}", ROW) == "Q3: 2+2?\n{json} A:{question}"
    assert template_columns("{a} {{b}} {c}") == {"a", "c"}
    template = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "{question}"}]
    assert render(template, ROW) == [template[0], {"role": "user", "content": "2+2?"}]
    assert template_columns(template) == {"question"}


def test_a_missing_column_is_named_with_key_columns_and_neighbour(refusal) -> None:
    error = refusal(render, "{quesion}", ROW)
    assert (error.where, error.hint) == ("data.prompt", "question")
    messages = [{"role": "a", "content": ""}, {"role": "b", "content": "{x}"}]
    assert refusal(render, messages, ROW).where == "data.prompt[1]"
    for column, got in (("none", "nothing (null)"), ("chat", "a list")):
        error = refusal(render, f"{{{column}}}", ROW, name="here")
        assert (error.where, error.got, error.expected) == ("here", got, "text or a number")
    assert render("{n}{none}{list}", ROW) == "3[2, 3]"


def test_a_path_that_a_row_has_not_is_named(refusal) -> None:
    row, name = {"a": {"b": 1, "c": [5, 6]}}, "data.mix.x"
    assert take_nested(row, 0, {"q": "a.c.1", "p": "a.b"}) == {"q": 6, "p": 1}
    assert take_nested({"a": json.dumps(row)}, 0, {"q": "a.a.c.1"}, name) == {"q": 6}
    for path, got, expected in (
        ("a.d", f"{row['a']}", "one of b, c"),
        ("a.c.2", "[5, 6]", "one of 0, 1"),
        ("a.b.x", "1", "an object"),
    ):
        error = refusal(take_nested, row, 0, {"q": path}, name)
        assert (error.where, error.got, error.expected) == ("data.mix.x.rename.q", got, expected)


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
    assert after(preview("q", "a"), {"q": "q.b"}, None) == ("q", "a")
    assert after(preview(), {"question": "q"}, "{question}") == ()


def test_columns_that_rename_or_template_lack(refusal) -> None:
    error = refusal(after, preview("qestion", "a"), {"prompt": "question"}, None, name="data.mix.x")
    assert (error.where, error.hint) == ("data.mix.x.rename.prompt", "data.mix.x.rename.prompt=qestion")
    # The old name is gone after a rename.
    error = refusal(after, preview("q", "a"), {"question": "q"}, "{q}")
    assert (error.where, error.hint) == ("data.rename.question", "data.prompt='{question}'")
    assert refusal(after, preview(), {}, "{q.x}").where == "data.prompt"
    for prompt in ([{"role": "user", "content": "{qa}"}], "'{qa}'"):  # what to write instead is no word to type
        error = refusal(after, preview("q", "abc"), {}, prompt)
        assert (error.hint, "{q}" in error.advice) == (None, True)


@pytest.fixture
def rates(jsonl) -> str:
    rates = enumerate([0.5, None, 0.0, 1.0, 0.5, 0.9])
    rows = [{"prompt": f"{a}+0=", "answer": str(a), "a": a, "b": 0, "rate": rate, "word": "a"} for a, rate in rates]
    return jsonl([{**row, "none": None} for row in rows])


@pytest.mark.parametrize(
    ("keep", "sort", "expected"),
    [
        (("rate", 0.1, 0.9), None, [0, 4, 5]),
        (("rate", 0.5, 0.5), None, [0, 4]),
        (("rate", 0.0, 1.0), "rate", [2, 0, 4, 5, 3]),
        (("rate", 0.0, 1.0), "-rate", [3, 5, 0, 4, 2]),
        (None, None, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_both_ways_to_read_give_the_same_rows(rates: str, keep, sort, expected: list[int]) -> None:
    source = DataSource(path=rates, keep=keep, sort=sort)
    _, table = prepare_preview(source, peek(source, 100), None)
    assert table is not None
    prompts = [f"{place}+0=" for place in expected]
    assert [table[row]["prompt"] for row in range(len(table))] == prompts == load_split([source], seed=0)["prompt"][:]
    first = first_rows([source], prompt=None, seed=0, limit=2)
    assert [row["prompt"] for row in first] == prompts[:2]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"select": (4, 6)}, None),
        ({"keep": ("rate", 0.1, 0.9)}, 1),
        ({"keep": ("rate", 0.9, 1.0)}, None),
        ({"keep": ("rate", 0.1, 0.9), "split": "train[:50%]"}, None),
    ],
)
def test_the_first_three_rows_say_nothing_about_others(rates: str, given, found: int | None, refusal) -> None:
    source = DataSource(path=rates, **given)
    columns, table = prepare_preview(source, peek(source, 3), None)
    assert ("rate" in columns, table and len(table)) == (True, found)
    first = DataSource(path=rates, keep=("rate", 0.9, 1.0), select=3)
    assert refusal(prepare_preview, first, peek(first, 3), None).where == "data.keep.between"


@pytest.mark.parametrize(
    ("keep", "sort", "where", "got", "hint"),
    [
        (("rat", 0.0, 1.0), None, "data.keep.column", None, "data.keep.column=rate"),
        (("word", 0.0, 1.0), None, "data.keep.column", "'a' in row 1 (the first row is 1)", None),
        (("rate", 0.6, 0.8), None, "data.keep.between", "0 to 1 in 6 rows", None),
        (("none", 0.6, 0.8), None, "data.keep.between", "nothing (null)", None),
        (None, "rate", "data.sort, row 2 (the first row is 1)", "nothing (null)", None),
        (None, "wort", "data.sort", None, "data.sort=word"),
    ],
)
def test_what_has_no_order_is_named(rates: str, keep, sort, where: str, got: str | None, hint: Any, refusal) -> None:
    error = refusal(load_split, [DataSource(path=rates, keep=keep, sort=sort)], seed=0)
    assert (error.where, error.got, error.hint) == (where, got, hint)
    assert error.expected or sort == "rate"


def test_check_counts_the_kept_rows_and_refuses_sorted_rows_that_are_shuffled(rates: str, capsys) -> None:
    def told(*words: str) -> tuple[int, str]:
        code, printed = main(["check", *words]), capsys.readouterr()
        return code, printed.err if code else printed.out

    args = ("per_device_train_batch_size=2", "num_generations=2", "gradient_accumulation_steps=1")
    words = ["+exp=quickstart", "data=file", f"data.path={rates}", "trainer.args.steps_per_generation=1"]
    words += [f"trainer.args.{one}" for one in args]
    keep = [*words, "data.keep.column=rate", "data.keep.between=[0.1,0.9]"]
    for typed, code, said in (
        (keep, 0, "3 rows"),
        (words, 0, "6 rows"),
        ([*keep, "data.sort=rate"], 2, "trainer.args.shuffle_dataset=false"),
        ([*keep, "data.sort=rate", "trainer.args.shuffle_dataset=false"], 0, "3 rows"),
        ([*keep, "data.keep.column=rat"], 2, "data.keep.column=rate"),
        (["+exp=toy_sft", "data.sort=-prompt"], 2, "trainer.args.train_sampling_strategy=sequential"),
    ):
        found, printed = told(*typed)
        assert (found, said in printed) == (code, True), typed
