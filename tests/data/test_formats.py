"""Compare the readers of files with Python's and Arrow's, and kinds of columns with a table."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlhf_cli.data.column_kinds import ColumnKind, ListKind, RecordKind, kind_of, label, merge
from rlhf_cli.data.data_files import Scan
from rlhf_cli.data.file_readers import read_csv, read_parquet_head

NULL, BOOL, INTEGER, NUMBER, TEXT, MIXED = ColumnKind
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
def test_a_column_of_two_kinds(first: str, second: str) -> None:
    """Null merges with any kind, integer and number give number, all other pairs are mixed, in any order."""
    left, right = kind_of(KINDS[first]), kind_of(KINDS[second])
    if "null" in (first, second) or first == second:
        expected = right if first == "null" else left
    else:
        expected = NUMBER if {first, second} == {"integer", "number"} else MIXED
    assert merge(left, right) == expected


def test_lists_and_records_are_merged_inside() -> None:
    assert merge(ListKind(INTEGER), ListKind(NUMBER)) == ListKind(NUMBER)
    assert merge(ListKind(TEXT), ListKind(NUMBER)) == ListKind(MIXED)
    merged = merge(RecordKind({"a": INTEGER, "b": NULL}), RecordKind({"b": TEXT, "c": BOOL}))
    assert merged == RecordKind({"a": INTEGER, "b": TEXT, "c": BOOL})
    assert isinstance(merged, RecordKind)
    assert list(merged.fields) == ["a", "b", "c"]


CELLS = ["", "0", "-7", "007", "7.0", "-0.5e3", "1e5", ".5", "1,5", "TRUE", "false", "yes", "NA", "inf", " 1",
         "999999999999999999", "9999999999999999999", "x\ny", 'q"q']  # fmt: skip
NUMBERS, INTEGERS, FLAGS = {"0", "-7", "7.0", "-0.5e3", "1e5"}, {"0", "-7", "999999999999999999"}, {"TRUE", "false"}


def test_a_csv_column_has_a_type_only_if_every_cell_has_it(workplace: Path) -> None:
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


@pytest.mark.parametrize("limit", [0, 1, 3, 4, 5, 9, 20, 2**40])
def test_the_first_rows_of_several_parquet_files(limit: int, workplace: Path) -> None:
    """Of files with 4, 0 and 5 rows, return the first `limit` rows and count all."""
    tables = [pa.table({"n": pa.array(range(first, last), pa.int64())}) for first, last in ((0, 4), (4, 4), (4, 9))]
    paths = [workplace / f"{number}.parquet" for number in range(3)]
    for path, table in zip(paths, tables, strict=True):
        pq.write_table(table, path, row_group_size=3)
    columns, rows, num_rows = read_parquet_head(paths, limit)
    assert (columns, [row["n"] for row in rows], num_rows) == (("n",), list(range(min(limit, 9))), 9)


def test_a_scan_keeps_the_first_rows_and_each_columns_first_value(refusal) -> None:
    found = Scan()
    found.add([("here:1", {"a": None}), ("here:2", {"a": 1, "b": "x"}), ("here:3", {"a": 2.5})], 2)
    assert found.num_rows == 3
    assert found.rows == [{"a": None}, {"a": 1, "b": "x"}]
    assert found.kinds == {"a": NUMBER, "b": TEXT}
    assert found.seen == {"a": ("here:2", "1"), "b": ("here:2", "x")}
    error = refusal(found.add, [("here:4", {"a": "z"})], 2)
    assert error.where == "here:4"
    assert "here:2" in error.expected
