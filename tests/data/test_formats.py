"""Compare what the readers of files give with what is loaded, and kinds of columns with a table."""

from __future__ import annotations

import csv
import gzip
import itertools
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlhf_cli.data.column_kinds import ColumnKind, ListKind, RecordKind, kind_of, label, merge
from rlhf_cli.data.data_files import Scan, scan
from rlhf_cli.data.file_readers import read_csv, read_parquet_head
from rlhf_cli.data.loading import load_split
from rlhf_cli.data.rows import RowTable
from rlhf_cli.data.source import DataSource
from rlhf_cli.errors import DataError

NULL, BOOL, INTEGER, NUMBER, TEXT, MIXED = ColumnKind
KINDS: dict[str, Any] = {
    "null": None, "flag": True, "integer": 1, "number": 0.5, "text": "x", "list": [1], "object": {"a": 1}, "set": {1},
}  # fmt: skip


def test_kinds_of_values_and_what_two_of_them_come_to() -> None:
    found = [kind_of(value) for value in KINDS.values()]
    assert found == [NULL, BOOL, INTEGER, NUMBER, TEXT, ListKind(INTEGER), RecordKind({"a": INTEGER}), MIXED]
    assert [label(kind) for kind in found[:-1]] == [NULL, BOOL, INTEGER, NUMBER, TEXT, "list", "object"]
    assert kind_of([]) == ListKind(NULL)
    assert kind_of([None, 1, 2.5]) == ListKind(NUMBER)
    assert kind_of([1, "x"]) == merge(ListKind(TEXT), ListKind(NUMBER)) == ListKind(MIXED)
    merged = merge(RecordKind({"a": INTEGER, "b": NULL}), RecordKind({"b": TEXT, "c": BOOL}))
    assert merged == RecordKind({"a": INTEGER, "b": TEXT, "c": BOOL})


@pytest.mark.parametrize("first", ["sep=;", '"sep=;"\r', "\ufeffsep=;", "sep=;;"])
def test_excel_states_the_separator(first: str, workplace: Path) -> None:
    (workplace / "t.csv").write_text(f"{first}\na;b\n1;x,y\n", newline="")
    assert [*read_csv(workplace / "t.csv")] == [(f"{workplace / 't.csv'}:3", {"a": 1, "b": "x,y"})]


@pytest.mark.parametrize(("first", "second"), list(itertools.product(list(KINDS)[:-1], repeat=2)))
def test_a_column_of_two_kinds(first: str, second: str) -> None:
    """Null merges with any kind, integer and number give number, all other pairs are mixed, in any order."""
    left, right = kind_of(KINDS[first]), kind_of(KINDS[second])
    if "null" in (first, second) or first == second:
        expected = right if first == "null" else left
    else:
        expected = NUMBER if {first, second} == {"integer", "number"} else MIXED
    assert merge(left, right) == expected


CELLS = ["", "0", "-7", "007", "7.0", "-0.5e3", "1e5", ".5", "1,5", "TRUE", "false", "yes", "NA", "inf", " 1",
         "999999999999999999", "9999999999999999999", "x\ny", 'q"q']  # fmt: skip
NUMBERS, INTEGERS, FLAGS = {"0", "-7", "7.0", "-0.5e3", "1e5"}, {"0", "-7", "999999999999999999"}, {"TRUE", "false"}


@pytest.mark.parametrize("first", CELLS)
def test_a_csv_column_has_a_type_only_if_every_cell_has_it(first: str, workplace: Path) -> None:
    for second in CELLS[CELLS.index(first) + 1 :]:
        pair = (first, second)
        with (workplace / "t.csv").open("w", newline="") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows([["a", "prompt"], *((cell, cell) for cell in pair)])
        found = [row for _, row in read_csv(workplace / "t.csv", ("prompt",))]
        assert [row["prompt"] for row in found] == [cell or None for cell in pair]
        filled = {cell for cell in pair if cell}
        if filled <= FLAGS:
            kind: Callable[[str], object] = "TRUE".__eq__
        elif filled <= INTEGERS:
            kind = int
        else:  # a float rounds an integer of 19 digits, which stays text
            kind = float if filled <= NUMBERS | INTEGERS else str
        assert [repr(row["a"]) for row in found] == [repr(kind(cell) if cell else None) for cell in pair]


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
    found.add([("here:1", {"a": None}), ("here:2", {"a": 1, "b": "x"}), ("here:3", {"a": 2.5, "c": "y" * 41})], 2)
    assert (found.num_rows, found.rows) == (3, [{"a": None}, {"a": 1, "b": "x"}])
    assert found.kinds == {"a": NUMBER, "b": TEXT, "c": TEXT}
    assert found.seen == {"a": ("here:2", "1"), "b": ("here:2", "x"), "c": ("here:3", "y" * 40 + "…")}
    error = refusal(found.add, [("here:4", {"a": "z"})], 2)
    assert (error.where, error.got, error.expected) == ("here:4", "z (text)", "number, as 1 in here:2")
    assert error.advice
    for number, shown in ((2**63, str(2**63)), (-(2**63) - 1, str(-(2**63) - 1)), (10**40, "1" + "0" * 39 + "…")):
        error = refusal(Scan().add, [("here:1", {"a": number})], 2)
        assert (error.where, error.got, error.expected) == ("here:1", shown, "text")


FINE = '{"a": "x", "n": 1}'
SOUND = {
    "a fraction among integers": [FINE] * 9 + ['{"n": 0.5}'],
    "a column that comes late": [FINE] * 9 + ['{"b": true, "a": "y"}'],
    "records that grow": ['{"r": {"x": 1}}'] * 9 + ['{"r": {"y": [1]}}'],
    "blank lines": [FINE, "", "  ", FINE] * 4,
    "Windows": [FINE + "\r"] * 9,
    "no line end at the end": [FINE] * 9,
    "what looks like a date": ['{"a": "2020-01-01", "d": "2020-01-01T00:00:00"}'] * 9,
    "escapes": ['{"a": "\\u0000 \\ud83d\\ude00 \\n \\u00e9 é \\/ \\""}'] * 9,
    "what JSON has not and Python reads": ['{"f": 1.5}'] * 9 + ['{"f": NaN}', '{"f": Infinity}', '{"f": 1e400}'],
    "text here and a list there, below": ['{"m": ["x"]}'] * 9 + ['{"m": [["y"]]}'],
    "empty records": ["{}", '{"e": {}, "a": 1}'] * 5,
}
SPOILT = {
    "two on a line": [FINE] * 9 + [FINE + FINE] + [FINE] * 9,
    "one on two lines": [FINE] * 9 + ['{"a":', '"x"}'] + [FINE] * 9,
    "no object": [FINE] * 9 + ["[1]"],
    "of another kind than a late column": [FINE] * 5 + ['{"late": 1}'] + [FINE] * 9 + ['{"late": "x"}'],
    "half a surrogate pair": [FINE] * 9 + ['{"a": "\\ud83d"}'],
    "cut off": [FINE] * 9 + ['{"a": "x'],
    "a control character": [FINE] * 9 + ['{"a": "\x01"}'],
    "nothing": ["", " "],
}


def outcome(function: Callable[[], object]) -> object:
    try:
        return function()
    except DataError as error:
        return str(error)


@pytest.mark.parametrize("name", [*SOUND, *SPOILT])
def test_what_is_checked_is_what_is_loaded(name: str, workplace: Path) -> None:
    text = "\n".join({**SOUND, **SPOILT}[name]) + ("" if name in ("no line end at the end", "cut off") else "\n")
    (workplace / "rows.jsonl").write_bytes(text.encode())

    def checked() -> object:
        found = scan([workplace / "rows.jsonl"], "jsonl", 99)
        assert len(found.rows) == found.num_rows
        return [RowTable(found.rows, [*found.kinds])[row] for row in range(found.num_rows)]

    source = DataSource(path=str(workplace / "rows.jsonl"))
    found = outcome(lambda: load_split([source], seed=0).to_list())
    assert repr(found) == repr(outcome(checked))
    assert isinstance(found, str) == (name in SPOILT)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": "x"},\n{"a": "y"},\n',
        '{\n  "a": "x"\n}\n{\n  "a": "y"\n}\n',
        "{'a': 'x'}\n{'a': 'y'}\n",
        '{"rows": [{"a": "x"}, {"a": "y"}]}',
    ],
)
def test_the_suggested_command_writes_a_file_that_is_read(text: str, workplace: Path) -> None:
    path = workplace / ("it's.json" if text.endswith("]}") else "it's.jsonl")
    path.write_text(text)
    with pytest.raises(DataError) as refused:
        scan([path], path.suffix[1:])
    assert refused.value.hint is not None
    if "jq" in refused.value.hint and shutil.which("jq") is None:
        pytest.skip("apt-get install jq")
    subprocess.run(refused.value.hint, shell=True, check=True)
    (new,) = (file for file in workplace.iterdir() if file != path)
    assert scan([new], path.suffix[1:], limit=5).rows == [{"a": "x"}, {"a": "y"}]


def test_bytes_that_are_no_text(workplace: Path) -> None:
    """A byte order mark is skipped; a line that is not UTF-8 and gzip that is cut off are refused."""
    good, bad = b"\xef\xbb\xbf" + b'{"a": "x"}\n' * 20, b'{"a": "\xff"}\n'
    for end, contents in (("", (good, good + bad, bad + good)), (".gz", (packed := gzip.compress(good), packed[:-9]))):
        for content in contents:
            (path := workplace / f"rows.jsonl{end}").write_bytes(content)
            found = outcome(lambda: scan([path], "jsonl").num_rows)
            assert found == 20 if content in (good, packed) else str(path) in str(found)
