"""Columns and first rows of every format as they are loaded, kinds of columns, mistakes with their file and line."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import os
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
from rlhf_cli.data.file_readers import numbered_lines, read_csv, read_parquet_head, shorten
from rlhf_cli.data.loading import load_split
from rlhf_cli.data.peeking import peek
from rlhf_cli.data.rows import RowTable
from rlhf_cli.data.source import DataSource
from rlhf_cli.errors import DataError

GOOD, LONG = '{"prompt": "one", "n": 1}\n', "x" * 99


def write(workplace: Path, name: str, content: str | bytes) -> DataSource:
    raw = content.encode() if isinstance(content, str) else content
    (workplace / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return DataSource(path=name)


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "json", "json.gz", "csv", "csv.gz", "parquet"])
def test_every_format_gives_the_same_preview_and_loads_the_same_rows(workplace: Path, suffix: str) -> None:
    rows = [{"prompt": f"é{number}", "n": number} for number in range(20)]
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), workplace / "rows.parquet")
        pq.write_table(pa.Table.from_pylist(rows[:1]), workplace / "another.parquet")
    else:
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        table = "prompt,n\n" + "".join(f"{row['prompt']},{row['n']}\n" for row in rows)
        content = {"jsonl": "\n".join(lines), "json": f"[{', '.join(lines)}]", "csv": table}
        write(workplace, f"rows.{suffix}", content[suffix.removesuffix(".gz")])
    source = DataSource(path=f"rows.{suffix}")
    found, dataset = peek(source, limit=3), load_split([source], seed=0)
    assert (found.columns, found.rows, found.num_rows) == (("prompt", "n"), rows[:3], 20)
    assert (found.origin, dataset.to_list()) == (f"rows.{suffix}", rows)
    assert dataset.cache_files, "not memory-mapped"


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
@pytest.mark.parametrize(
    ("bad_line", "got"),
    [
        (f'{{"prompt": "{LONG}", "n": 2,, }}\n', '"n": 2,,'),
        ('["prompt"]\n', '["prompt"]'),
        ('{"prompt": ["two"], "n": 2}\n', "list"),
        ('{"prompt": "two", "n": true}\n', "true/false"),
        (f'{{"prompt": "{LONG}é"'.encode("latin1"), "x\ufffd"),
        (f'{{"prompt": "{LONG}\\ud83d", "n": 2}}\n', "\\ud83d"),
        ("[" * 100_000 + "\n", "[[["),
        (f'{{"prompt": "two", "n": {"9" * 6000}}}\n', "999"),
    ],
)
@pytest.mark.fault(42)
def test_a_bad_line_is_reported(workplace: Path, bad_line: str | bytes, got: str, suffix: str, refusal) -> None:
    raw = bad_line if isinstance(bad_line, bytes) else bad_line.encode()
    # Row 12 on line 13: past the previewed rows, and after a blank line, which counts as a line.
    source = write(workplace, f"rows.{suffix}", (GOOD * 6 + "\n" + GOOD * 5).encode() + raw + GOOD.encode())
    error = refusal(peek, source, limit=2)
    assert (error.where, got in str(error.got)) == (f"rows.{suffix}:13", True)
    assert error.expected or error.advice or got in ("[[[", "999")


def test_a_line_is_cut_off_if_its_end_is_missing(workplace: Path, refusal) -> None:
    """Of a last line without an end; text behind a complete object is a mistake with or without it."""

    def said(last: str) -> str:
        return refusal(peek, write(workplace, "rows.jsonl", GOOD + last)).what

    assert said('{"prompt": "two"} x') == said('{"prompt": "two"} x\n') != said('{"prompt": "two"')
    assert said('{"prompt": "two"\n') != said('{"prompt": "two"')


@pytest.mark.parametrize(
    ("first", "hint"),
    [
        (b"\xff\xfe", "iconv -f utf-16 -t utf-8 'my rows.csv' > 'my rows-utf8.csv'"),
        (b"p\0r\0", "iconv -f utf-16le -t utf-8 'my rows.csv' > 'my rows-utf8.csv'"),
        (b"\0p\0r", "iconv -f utf-16be -t utf-8 'my rows.csv' > 'my rows-utf8.csv'"),
        (b"\x1f\x8b", "mv 'my rows.csv' 'my rows.csv'.gz"),
    ],
)
def test_a_file_of_another_kind_gets_its_command(workplace: Path, first: bytes, hint: str, refusal) -> None:
    error = refusal(peek, write(workplace, "my rows.csv", first + b" more" * 9))
    assert (error.where, error.got, error.hint) == ("my rows.csv", repr((first + b" more" * 9)[:20]), hint)
    assert ".gz" in error.expected


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("3", "rows.json"),
        ("[" * 100_000, "rows.json"),
        (f'[{{"a": {"9" * 6000}}}]', "rows.json"),
        (f'[\n {{"a": 1}},\n {{"a": "{LONG}", "b": }}\n]', "rows.json:3"),
        ('{"a": 1}\n{"a": }', "rows.json:2"),
        ('[{"a": 1}]\n3', "rows.json:2"),
        ('[{"a": 1}, "x"]', "rows.json: item 2"),
        ('[{"a": "\\ud83d"}]', "rows.json"),
    ],
)
def test_a_json_file_must_be_a_list_of_objects(text: str, where: str, workplace: Path, refusal) -> None:
    error = refusal(peek, write(workplace, "rows.json", text))
    assert (error.where, bool(error.got)) == (where, True)
    assert error.expected or error.advice or max(map(text.count, "[9")) > 999
    assert where != "rows.json:3" or '"b": }' in error.got


@pytest.mark.parametrize("text", ['{"a": 1}\n{"a": 2}\n', '[{"a": 1}, {"a": 2}]', '[\n {"a": 1},\n {"a": 2}\n]\n'])
def test_what_a_file_holds_counts_and_not_its_name(text: str, workplace: Path) -> None:
    for name in ("rows.json", "rows.jsonl", "rows.ndjson"):
        assert peek(write(workplace, name, text)).rows == [{"a": 1}, {"a": 2}], name


@pytest.mark.parametrize(("name", "content"), [("a.jsonl", ""), ("a.json", "[]"), ("a.json", " "), ("a.csv", "p\n")])
def test_a_file_without_rows_or_that_is_cut_off(workplace: Path, name: str, content: str, refusal) -> None:
    error = refusal(peek, write(workplace, name, content))
    assert (error.where, error.got, bool(error.advice)) == (name, f"{len(content)} bytes", True)
    (workplace / f"{name}.gz").write_bytes(gzip.compress(content.encode())[:5])
    error = refusal(peek, DataSource(path=f"{name}.gz"))
    assert (error.where, "ended" in str(error.got), "again" in error.advice) == (f"{name}.gz:1", True, True)
    error = refusal(list, numbered_lines(Path(f"no {name}")))
    assert (error.where, error.got) == (f"no {name}", "No such file or directory")


@pytest.mark.parametrize(
    ("content", "line", "got", "expected"),
    [
        ('q,a\n"two\nlines",1\n\nwhy, oh why,2\n', 5, "why, oh why,2", "q, a"),
        ("q,q\n1,2\n", 1, "q,q", None),
        ("q, \n1,2\n", 1, "q, ", None),
        ('q,a\nx,1\n"open,2\n', 3, None, None),
        (b"q,a\ncaf\xe9,1\n", 2, "caf\ufffd,1", None),
    ],
)
def test_csv_mistakes(workplace: Path, content: str | bytes, line: int, got: Any, expected: Any, refusal) -> None:
    error = refusal(peek, write(workplace, "rows.csv", content))
    assert (error.where, error.got, error.expected) == (f"rows.csv:{line}", got, expected)
    assert error.advice or got == "q,q"


def test_a_long_line_is_cut_around_its_mistake() -> None:
    shown = [shorten("0123456789\r\n", around, width=4) for around in (0, 2, 3, 7, 8, 99)]
    assert shown == ["0123…", "0123…", "…1234…", "…5678…", "…6789", "…6789"]
    assert [shorten("x" * length) for length in (80, 81)] == ["x" * 80, "x" * 80 + "…"]


@pytest.mark.fault(42)
def test_parquet_mistakes_are_reported_with_their_file(workplace: Path, refusal) -> None:
    error = refusal(peek, write(workplace, "not.parquet", "no"))
    assert (error.where, error.got.split(":")[0]) == ("not.parquet", "ArrowInvalid")
    pq.write_table(pa.table({"prompt": ["x"], "n": [1]}), "a.parquet")
    pq.write_table(pa.table({"prompt": ["x"], "n": ["1"]}), "b.parquet")
    for read in (peek, lambda source: load_split([source], seed=0)):
        error = refusal(read, DataSource(path=["a.parquet", "b.parquet"]))
        assert (error.where, error.got) == ("b.parquet", "prompt: string, n: string")
        assert error.expected == "prompt: string, n: int64, as in a.parquet"
    map_kind, twice = pa.map_(pa.string(), pa.int64()), [("b", pa.int64()), ("b", pa.int64())]
    for kinds in ({"prompt": pa.string()}, {"a": map_kind}, twice):  # no rows, and what `datasets` does not read
        schema = pa.schema(kinds)
        rows = [pa.array([None] * ("prompt" not in kinds), column.type) for column in schema]
        pq.write_table(pa.Table.from_arrays(rows, schema=schema), "t.parquet")
        assert refusal(peek, DataSource(path="t.parquet")).where == "t.parquet"


def test_damage_within_a_parquet_file_is_reported_with_it(workplace: Path, refusal) -> None:
    """The footer is whole: the head reads the first damaged page, training the one behind it."""
    texts = [f"{row:0100}" for row in range(3000)]
    pq.write_table(pa.table({"prompt": texts}), "whole.parquet", row_group_size=1000, compression=None)
    content = Path("whole.parquet").read_bytes()
    for row, reads in ((0, peek), (2000, lambda source: load_split([source], seed=0))):
        at = content.index(texts[row].encode())
        damaged = content[: at - 20] + b"\xff" * 20 + content[at:]
        Path(f"{row}.parquet").write_bytes(damaged)
        error = refusal(reads, DataSource(path=f"{row}.parquet"))
        assert Path(str(error.where)).name == f"{row}.parquet"
    latin = pa.array([b"\xe9"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"prompt": latin}), "latin.parquet")
    assert refusal(peek, DataSource(path="latin.parquet")).where == "latin.parquet"


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet", "jsonl.gz"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_pipes_and_devices_are_refused(suffix: str, kind: str, workplace: Path, refusal) -> None:
    file = workplace / f"rows.{suffix}"
    os.mkfifo(file) if kind == "pipe" else file.symlink_to("/dev/zero")
    error = refusal(peek, DataSource(path=str(file)), limit=1)
    assert (error.where, error.expected) == ("data.path", "a file")
    assert (str(file) in str(error.got), str(file) in error.advice) == (True, True)


@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv"])
@pytest.mark.parametrize("sign", [",", ";", "\t", "|"])
def test_a_table_with_another_separator(workplace: Path, sign: str, name: str) -> None:
    source = write(workplace, name, f'prompt{sign}answer\n"1+1{sign} say"{sign}2\n')
    assert peek(source, limit=2).rows == [{"prompt": f"1+1{sign} say", "answer": 2}]
    both = [peek(write(workplace, f"x.{kind}", "a,b\tc\n1,2\t3\n")).columns for kind in ("tsv", "csv")]
    assert both == [("a,b", "c"), ("a", "b\tc")]
    long = "a;b" * 50_000  # a cell may be longer than the 128 KiB of the csv module
    assert peek(write(workplace, "rows.csv", f"prompt\n{long}\n")).rows == [{"prompt": long}], "the header has no sign"


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
    assert repr(merged) == repr(RecordKind({"a": INTEGER, "b": TEXT, "c": BOOL})), "in this order"


def test_excel_states_the_separator(workplace: Path) -> None:
    for first in ("sep=;", '"sep=;"\r', "\ufeffsep=;", "sep=;;"):
        (workplace / "t.csv").write_text(f"{first}\na;b\n1;x,y\n", newline="")
        assert [*read_csv(workplace / "t.csv")] == [(f"{workplace / 't.csv'}:3", {"a": 1, "b": "x,y"})], first


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


def test_the_first_rows_of_several_parquet_files(workplace: Path) -> None:
    paths = [workplace / f"{number}.parquet" for number in range(3)]
    for path, (first, last) in zip(paths, ((0, 4), (4, 4), (4, 9)), strict=True):
        pq.write_table(pa.table({"n": pa.array(range(first, last), pa.int64())}), path, row_group_size=3)
    for limit in (0, 1, 3, 4, 5, 9, 20, 2**40):
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
        '{"my rows": [{"a": "x"}, {"a": "y"}]}',
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
