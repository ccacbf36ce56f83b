"""Rows: in memory as in a dataset, held out by their prompts, empty, no text, with prompts that others share."""

from __future__ import annotations

from datetime import date
from typing import Any

import datasets
import pytest

from rlhf_cli.data.loading import load_split
from rlhf_cli.data.rows import (
    RowTable,
    at_rows,
    check_rows,
    describe_shared,
    hold_out,
    hold_out_places,
    is_empty,
    map_rows,
    prompt_key,
    prompt_keys,
    refuse_no_text,
    shared_prompts,
)
from rlhf_cli.data.source import DataSource

CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]


def test_a_table_in_memory_gives_what_a_dataset_gives() -> None:
    """A column that a row lacks is null there."""
    rows = [{"a": place, "b": {"c": str(place)}} for place in range(5)] + [{"a": 5}]
    table, dataset = RowTable(rows, ["a", "b"]), datasets.Dataset.from_list(rows)
    for same in (
        lambda some: list(some.iter(batch_size=4)),
        lambda some: [some.rename_columns({"a": "x"})[row] for row in (0, 5)],
        lambda some: [some.select_columns(["b"])[row] for row in range(len(some))],
        lambda some: [some.select([5, 0, 0])[row] for row in range(3)],
        lambda some: map_rows(some, lambda row, at, by: {"d": row["a"] * by + at}, {"d": ""}, by=3)[4],
        lambda some: map_rows(some, lambda row, at: {"d": at}, {"d": ""})[2],
    ):
        assert same(table) == same(dataset)  # type: ignore[no-untyped-call]
    assert list(map_rows(table, lambda row, at: {"d": at}, {"d": "", "a": ""}).column_names) == ["a", "b", "d"]
    for path, kind in (("b.c", "string"), ("", "null")):
        added = map_rows(dataset, lambda row, at: {"d": None}, {"d": path})
        assert added.features["d"] == datasets.Value(kind)  # type: ignore[union-attr]


def test_a_fraction_of_ten_prompts_is_held_out(refusal) -> None:
    """The number is rounded, a half to the even number; none and all are refused."""
    table = RowTable([{"prompt": str(n)} for n in range(10)], ["prompt"])
    for fraction, held in ((0.1, 1), (0.25, 2), (0.74, 7)):
        train, out = hold_out_places(table, fraction, 0)
        assert (len(out), sorted(train + out), out) == (held, list(range(10)), sorted(out))
    for fraction in (0.95, 0.04):
        error = refusal(hold_out_places, table, fraction, 0)
        assert (error.where, error.got) == ("data.eval", "10 rows, 10 prompts")
        assert "data.eval.path" in error.advice


@pytest.mark.parametrize(
    ("expected", "values"),
    [
        (True, ["", " \n", None, [], [{"role": "a"}], [None, ""]]),
        (
            False,
            ["x", 0, False, [1], {"content": ""}, [{"content": ""}, {"content": "x"}], {"role": "a", "content": "x"}],
        ),
        (False, [[{"content": [{"type": "image", "content": "x"}]}], {"role": "a", "tool_calls": [1]}]),
    ],
)
def test_empty_values(expected: bool, values: list[object]) -> None:
    assert [is_empty(value) for value in values] == [expected] * len(values)


def test_a_prompt_is_text_or_messages(refusal) -> None:
    assert refuse_no_text("x", "text", "data") == "text"
    assert refuse_no_text("x", CHAT, "data") == "messages"
    for value, path in ((3, ""), ({"role": "user"}, ".role"), ({}, ".KEY"), ([{"content": "x"}], ""), ([*CHAT, 3], "")):
        error = refusal(refuse_no_text, "x", value, "data.eval")
        got = (error.got, "text" in error.expected)
        assert (error.where, *got) == ("data.eval", f"{value!r:.80} ({type(value).__name__})", True)
        assert "data.eval.rename.x=COLUMN" in error.advice
        assert (f"data.eval.rename.x=x{path}" in error.advice) == (path != "")
    for column, value, has_template in (("prompt", 3, True), ("prompt", ["x"], False), ("x", 3, False)):
        assert ("data.prompt='{prompt}'" in refusal(refuse_no_text, column, value, "data").advice) == has_template


def test_hold_out_is_disjoint_in_prompts_and_the_same_again() -> None:
    dataset = load_split(
        [DataSource(world="toy_sums", args={"num_rows": 300, "max_value": 9})], seed=0
    )  # 100 pairs, three times each
    train, held = hold_out(dataset, 0.2, seed=1)
    assert not set(train["prompt"]) & set(held["prompt"])
    assert (len(train), len(held)) == (240, 60)
    assert hold_out(dataset, 0.2, seed=1)[1]["prompt"][:] == held["prompt"][:]
    assert hold_out(dataset, 0.2, seed=2)[1]["prompt"][:] != held["prompt"][:]
    # Negative control: a split by rows would have leaked.
    by_rows = dataset.train_test_split(0.2, seed=1)
    assert set(by_rows["train"]["prompt"]) & set(by_rows["test"]["prompt"])


@pytest.mark.fault(41)
def test_check_rows_names_the_empty_ones(refusal) -> None:
    prompts = ["a", None, "", "  ", "b", None, None, None]
    error = refusal(check_rows, datasets.Dataset.from_dict({"prompt": prompts}), ["prompt"], "data.eval")
    assert (error.where, error.got) == ("data.eval, rows 2, 3, 4, 6, 7, ... (the first row is 1)", "None")
    assert ("text" in error.expected, "rename" in error.advice) == (True, True)
    error = refusal(check_rows, RowTable([], ["prompt"]), ["prompt"], "data.eval")
    assert (error.where, error.got, "select" in error.advice) == ("data.eval", "0 rows", True)
    assert at_rows("x", 3) == "x, row 3 (the first row is 1)"
    assert at_rows("x", *range(1, 7)) == "x, rows 1, 2, 3, 4, 5, ... (the first row is 1)"
    chats = [[{"role": "user", "content": "x"}], [], [{"role": "user", "content": " "}]]
    assert "rows 2, 3 (" in refusal(check_rows, datasets.Dataset.from_dict({"prompt": chats}), ["prompt"]).where


def message(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def table(*rows: dict[str, Any]) -> RowTable:
    return RowTable(rows, list(dict.fromkeys(name for row in rows for name in row)))


def shared(held_out: RowTable, *training: RowTable) -> int:
    found = shared_prompts(held_out, training)
    return sum(key in found for key in prompt_keys(held_out))


ASKED, OTHER = [message("user", "1+1?")], [message("user", "1+2?")]
YES, NO = message("assistant", "2"), message("assistant", "who knows")


def pair(chosen: Any, rejected: Any, **more: Any) -> dict[str, Any]:
    return {"chosen": chosen, "rejected": rejected, **more}


def ids(*last: int) -> dict[str, Any]:
    return {f"{name}_ids": [5, 6, token] for name, token in zip(("chosen", "rejected"), last, strict=True)}


OTHERS = pair([*OTHER, YES], [*OTHER, NO])
SAME = {
    "text": ({"prompt": "1+1="}, {"prompt": "1+1="}, {"prompt": "1+2="}),
    "another answer": tuple({"prompt": f"1+{n}=", "completion": said} for n, said in ((1, "2"), (1, "3"), (2, "2"))),
    "dialogues": ({"messages": [*ASKED, YES]}, {"messages": [*ASKED, NO]}, {"messages": [*OTHER, YES]}),
    "pairs of transcripts": (pair([*ASKED, YES], [*ASKED, NO]), pair([*ASKED, NO], [*ASKED, YES]), OTHERS),
    "a prompt of its own, and in the transcripts": (
        *(pair([YES], [NO], prompt=ASKED), pair([*ASKED, YES], [*ASKED, NO]), OTHERS),
    ),
    "a pair whose rejected answer is missing": (pair([*ASKED, YES], [*ASKED, NO]), pair([*ASKED, YES], []), OTHERS),
    "pairs of token ids": (ids(7, 8), ids(7, 8), ids(7, 9)),
    "plain text": ({"text": "1+1=2"}, {"text": "1+1=2"}, {"text": "1+1=3"}),
}


@pytest.mark.parametrize("name", SAME)
def test_equal_prompts_are_found(name: str) -> None:
    """Only those that are held out are shared; rows are counted, over all sources."""
    trained, same, other = SAME[name]
    assert shared_prompts(table(same), [table(same, other)]) == set(prompt_keys(table(same)))
    assert shared(table(same), table(trained)) == 1
    assert shared(table(other), table(trained)) == 0
    assert shared(table(same, other, same), table(other), table(trained)) == 3
    assert [describe_shared(shared, 3).split(" evaluation")[0] for shared in (2, 3)] == ["2 of 3", "all 3"]


@pytest.mark.parametrize(
    ("row", "same"),
    [
        ({"text": "t", "x": 1}, {"text": "t", "x": 2}),
        ({"chosen": None, "rejected": "x", "text": "t"}, {"text": "t"}),
        ({"prompt": [{"role": "user", "content": "a"}]}, {"prompt": [{"content": "a", "role": "user"}]}),
        ({"prompt": date(2026, 1, 2)}, {"prompt": "2026-01-02"}),
        (pair([*ASKED, YES], [*ASKED, YES]), pair([*ASKED, YES], [*ASKED, NO])),
        (pair([*ASKED, YES, *OTHER, YES], [*ASKED, NO, *OTHER, NO]), pair([*ASKED, YES], [*ASKED, NO])),
    ],
)
def test_the_prompt_of_a_row_counts_and_nothing_else(row: dict[str, Any], same: dict[str, Any]) -> None:
    assert prompt_key(row) == prompt_key(same) != prompt_key({"text": "u"})
    assert list(prompt_keys(table({"body": "a"}, {"body": "b"}))) == [None, None]


def test_a_fraction_keeps_the_dialogues_of_one_prompt_together() -> None:
    """Four prompts, five dialogues each: training and held-out rows share no prompt."""
    rows = [{"messages": [message("user", f"{at % 4}?"), message("assistant", str(at))]} for at in range(20)]
    train, held = hold_out_places(table(*rows), 0.25, seed=3)
    asked, held_out = ({rows[at]["messages"][0]["content"] for at in places} for places in (train, held))
    assert (len(held), len(asked), asked & held_out) == (5, 3, set())
