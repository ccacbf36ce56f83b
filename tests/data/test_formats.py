"""Readers of files held against Python's and Arrow's own, and what a column holds by a table of its own."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlhf_cli.data.data_files import Scan
from rlhf_cli.data.file_readers import (
    BOOL,
    INTEGER,
    MIXED,
    NULL,
    NUMBER,
    TEXT,
    ListKind,
    RecordKind,
    kind_of,
    label,
    merge,
    parquet_head,
    read_csv,
)
from rlhf_cli.data.peeking import peek
from rlhf_cli.data.source import DataSource

KINDS: dict[str, Any] = {
    "null": None, "flag": True, "integer": 1, "number": 0.5, "text": "x", "list": [1], "object": {"a": 1}, "set": {1},
}  # fmt: skip


def test_kinds_of_values() -> None:
    found = [kind_of(value) for value in KINDS.values()]
    assert found == [NULL, BOOL, INTEGER, NUMBER, TEXT, ListKind(INTEGER), RecordKind({"a": INTEGER}), MIXED]
    assert [label(kind) for kind in found[:-1]] == [NULL, BOOL, INTEGER, NUMBER, TEXT, "list", "object"]
    assert kind_of([]) == ListKind(NULL)
    assert kind_of([None, 1, 2.5]) == ListKind(NUMBER)
    assert kind_of([1, "x"]) == ListKind(MIXED)


@pytest.mark.parametrize(("first", "second"), list(itertools.product(list(KINDS)[:-1], repeat=2)))
def test_what_a_column_of_two_kinds_holds(first: str, second: str) -> None:
    """Null joins any, integers and numbers are numbers, the rest joins its own sort alone, in any order."""
    one, other = kind_of(KINDS[first]), kind_of(KINDS[second])
    if first == second or second == "null":
        expected = one
    elif first == "null":
        expected = other
    else:
        expected = NUMBER if {first, second} == {"integer", "number"} else MIXED
    assert merge(one, other) == expected


def test_lists_and_records_are_merged_inside() -> None:
    assert merge(ListKind(INTEGER), ListKind(NUMBER)) == ListKind(NUMBER)
    assert merge(ListKind(TEXT), ListKind(NUMBER)) == ListKind(MIXED)
    one, other = RecordKind({"a": INTEGER, "b": NULL}), RecordKind({"b": TEXT, "c": BOOL})
    merged = merge(one, other)
    assert merged == RecordKind({"a": INTEGER, "b": TEXT, "c": BOOL})
    assert isinstance(merged, RecordKind)
    assert list(merged.fields) == ["a", "b", "c"]


CELLS = ["", "0", "-7", "007", "7.0", "-0.5e3", "1e5", ".5", "1,5", "TRUE", "false", "yes", "NA", "inf", " 1",
         "999999999999999999", "9999999999999999999", "x\ny", 'q"q']  # fmt: skip
NUMBERS, INTEGERS, FLAGS = {"0", "-7", "7.0", "-0.5e3", "1e5"}, {"0", "-7", "999999999999999999"}, {"TRUE", "false"}


def test_a_csv_column_is_typed_only_where_every_cell_is_written_so(workplace: Path) -> None:
    for pair in itertools.combinations(CELLS, 2):
        assert_typed(pair, workplace)


def assert_typed(pair: tuple[str, str], workplace: Path) -> None:
    with (workplace / "t.csv").open("w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([["a", "prompt"], *((cell, cell) for cell in pair)])
    found = [row for _, row in read_csv(workplace / "t.csv", ("prompt",))]
    assert [row["prompt"] for row in found] == [cell or None for cell in pair]
    filled, values = [cell for cell in pair if cell], [row["a"] for row in found]
    if set(filled) <= FLAGS:
        expected: list[object] = [None if not cell else cell == "TRUE" for cell in pair]
    elif set(filled) <= INTEGERS:
        expected = [int(cell) if cell else None for cell in pair]
    elif set(filled) <= NUMBERS | INTEGERS | {"9999999999999999999"}:
        expected = [float(cell) if cell else None for cell in pair]
    else:
        expected = [cell or None for cell in pair]
    assert list(map(repr, values)) == list(map(repr, expected))


@pytest.mark.parametrize("limit", [0, 1, 3, 4, 5, 9, 20])
def test_the_first_rows_of_several_parquet_files(limit: int, workplace: Path) -> None:
    """In batches of a limit: of 4, 0 and 5 rows the first so many, and how many there are."""
    tables = [pa.table({"n": pa.array(range(first, last), pa.int64())}) for first, last in ((0, 4), (4, 4), (4, 9))]
    paths = [workplace / f"{number}.parquet" for number in range(3)]
    for path, table in zip(paths, tables, strict=True):
        pq.write_table(table, path, row_group_size=3)
    columns, rows, num_rows = parquet_head(paths, limit)
    assert (columns, [row["n"] for row in rows], num_rows) == (("n",), list(range(min(limit, 9))), 9)


def test_a_scan_holds_so_many_rows_and_where_columns_began(refusal) -> None:
    found = Scan()
    found.add([("here:1", {"a": None}), ("here:2", {"a": 1, "b": "x"}), ("here:3", {"a": 2.5})], 2)
    assert found.num_rows == 3
    assert found.rows == [{"a": None}, {"a": 1, "b": "x"}]
    assert found.kinds == {"a": NUMBER, "b": TEXT}
    assert found.seen == {"a": ("here:2", "1"), "b": ("here:2", "x")}
    assert "as 1 in here:2" in refusal(found.add, [("here:4", {"a": "z"})], 2)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"a": "x"', "the last line is cut off"),
        ('{"a": 1} {"a": 2}', "malformed JSON: Extra data at character 10"),
        ("[" * 100_000 + "\n", "nested too deeply"),
        ("[1]\n", "ending in .json"),
    ],
)
def test_lines_that_are_no_rows(line: str, said: str, workplace: Path, refusal) -> None:
    (workplace / "t.jsonl").write_text(line)
    assert said in refusal(peek, DataSource(path="t.jsonl"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("3", "got:      3"),
        ('{"data": 1, "b": 2}', 'got:      {"data": 1, "b": 2}'),
        ("[" * 100_000, "nested too deeply"),
        ('[{"a": 1},', "rows.json:1"),
        ('[\n {"a": 1},\n {"a": }\n]', "rows.json:3"),
        ('{"a": 1}\n{"a": 2}', "rename the file to .jsonl"),
        ('{"a": 1}\n{"a": 2}', "several JSON values"),
        ('[{"a": 1}]\n3', "malformed JSON: Extra data"),
        ('[{"a": 1}, "x"]', "item 2"),
        ('[{"a": "\\ud83d"}]', "half of a character"),
    ],
)
def test_files_that_are_no_list(text: str, said: str, workplace: Path, refusal) -> None:
    (workplace / "rows.json").write_text(text)
    assert said in refusal(peek, DataSource(path="rows.json"))
