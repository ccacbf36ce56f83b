"""Rows: in memory as in a dataset, held out by their prompts, empty, or of something else than text."""

from __future__ import annotations

import datasets
import pytest

from rlhf_cli.data.loading import load_split
from rlhf_cli.data.rows import (
    RowTable,
    at_rows,
    check_rows,
    hold_out,
    hold_out_places,
    is_empty,
    map_rows,
    refuse_no_text,
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


@pytest.mark.parametrize(("fraction", "held"), [(0.1, 1), (0.25, 2), (0.74, 7), (0.95, None), (0.04, None)])
def test_a_fraction_of_ten_prompts_is_held_out(fraction: float, held: int | None, refusal) -> None:
    """The number is rounded, a half to the even number; none and all are refused."""
    table = RowTable([{"prompt": str(n)} for n in range(10)], ["prompt"])
    if held is None:
        error = refusal(hold_out_places, table, fraction, 0)
        assert (error.where, error.got) == ("data.eval", "10 rows, 10 prompts")
        assert "data.eval.path" in error.advice
        return
    train, out = hold_out_places(table, fraction, 0)
    assert (len(out), sorted(train + out)) == (held, list(range(10)))
    assert out == sorted(out)


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
