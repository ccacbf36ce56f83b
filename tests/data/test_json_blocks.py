"""JSON Lines that Arrow reads: the rows, kinds and verdicts of Python's reader.

The reader that looks at every line stays as it was, and is what the other is held against.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from rlhf_cli.data import data_files
from rlhf_cli.data.column_kinds import ColumnKind, ListKind, RecordKind, arrow_schema
from rlhf_cli.data.data_files import FORMATS
from rlhf_cli.data.file_readers import read_by_arrow
from rlhf_cli.data.loading import features_of, load_split
from rlhf_cli.data.source import DataSource
from rlhf_cli.errors import DataError

FINE = '{"a": "x", "n": 1}'
SOUND = {
    "a fraction among integers": [FINE] * 9 + ['{"n": 0.5}'],
    "a column that comes late": [FINE] * 9 + ['{"b": true, "a": "y"}'],
    "nulls, then text": ['{"a": null}'] * 9 + [FINE],
    "lists that were empty": ['{"l": []}'] * 9 + ['{"l": ["x"]}'],
    "records that grow": ['{"r": {"x": 1}}'] * 9 + ['{"r": {"y": [1]}}'],
    "blank lines": [FINE, "", "  ", FINE] * 4,
    "blanks around": [" " + FINE, FINE + "\t"] * 5,
    "Windows": [FINE + "\r"] * 9,
    "no line end at the end": [FINE] * 9 + [FINE + "\x00"],
    "a key twice in a row": [FINE] * 9 + ['{"a": "x", "a": "z"}'],
    "braces in texts": ['{"a": "\\\\frac{3}{4} }{ } {"}'] * 9,
    "what looks like a date": ['{"a": "2020-01-01", "d": "2020-01-01T00:00:00"}'] * 9,
    "escapes": ['{"a": "\\u0000 \\ud83d\\ude00 \\n \\u00e9 é \\/ \\""}'] * 9,
    "what JSON has not and Python reads": ['{"f": 1.5}'] * 9 + ['{"f": NaN}', '{"f": Infinity}', '{"f": 1e400}'],
    "all null": ['{"a": null, "b": []}'] * 9,
    "text here and a list there, below": ['{"m": ["x"]}'] * 9 + ['{"m": [["y"]]}'],
    "empty records": ["{}", '{"e": {}, "a": 1}'] * 5,
}
SPOILT = {
    "malformed": [FINE] * 9 + ['{"a": "x",}', FINE],
    "two on a line": [FINE] * 9 + [FINE + FINE] + [FINE] * 9,
    "one on two lines": [FINE] * 9 + ['{"a":', '"x"}'] + [FINE] * 9,
    "no object": [FINE] * 9 + ["[1]"],
    "of another kind": [FINE] * 9 + ['{"a": 5}'],
    "of another kind than a late column": [FINE] * 5 + ['{"late": 1}'] + [FINE] * 9 + ['{"late": "x"}'],
    "half a surrogate pair": [FINE] * 9 + ['{"a": "\\ud83d"}'],
    "cut off": [FINE] * 9 + ['{"a": "x'],
    "a control character": [FINE] * 9 + ['{"a": "\x01"}'],
    "nothing": ["", " "],
}


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow reads, however small the file is, with the types of the first five rows."""
    monkeypatch.setattr(data_files, "_FIRST_ROWS", 5)
    monkeypatch.setattr(data_files, "_LARGE_BYTES", -1)


def by_lines(monkeypatch: pytest.MonkeyPatch, function: Callable[[], object]) -> object:
    """What `function` comes to without Arrow's reader; the text of the DataError that it ends in."""
    with monkeypatch.context() as patch:
        patch.setattr(data_files, "_LARGE_BYTES", 1 << 60)
        return outcome(function)


def outcome(function: Callable[[], object]) -> object:
    try:
        return function()
    except DataError as error:
        return str(error)


@pytest.mark.parametrize("name", [*SOUND, *SPOILT])
def test_what_is_read_and_what_is_said(name: str, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = {**SOUND, **SPOILT}[name]
    text = "\n".join(lines) + ("" if name in ("no line end at the end", "cut off") else "\n")
    if name == "no line end at the end":
        text = text.removesuffix("\x00")
    (workplace / "rows.jsonl").write_bytes(text.encode())
    paths = [workplace / "rows.jsonl"]

    def scanned() -> object:
        found = FORMATS["jsonl"].scan(paths, 2)
        return found.kinds, list(found.kinds), found.rows, found.num_rows

    def loaded() -> object:
        dataset = load_split([DataSource(path="rows.jsonl")], seed=0)
        return repr(dataset.to_list()), dataset.features

    for function in (scanned, loaded):
        found = outcome(function)
        assert found == by_lines(monkeypatch, function)
        assert isinstance(found, str) == (name in SPOILT)


def test_bytes_that_are_no_text(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both readers skip a byte order mark, name the line that is not UTF-8, and refuse gzip that is cut off."""
    good = b"\xef\xbb\xbf" + b'{"a": "x"}\n' * 20
    for content in (good, good + b'{"a": "\xff"}\n', b'{"a": "\xff"}\n' + good):
        (workplace / "rows.jsonl").write_bytes(content)
        paths = [workplace / "rows.jsonl"]
        found = outcome(lambda: FORMATS["jsonl"].scan(paths).num_rows)  # noqa: B023
        assert found == by_lines(monkeypatch, lambda: FORMATS["jsonl"].scan(paths).num_rows)  # noqa: B023
    packed = gzip.compress(good)
    for content in (packed, packed[:-9]):
        (workplace / "rows.jsonl.gz").write_bytes(content)
        paths = [workplace / "rows.jsonl.gz"]
        found = outcome(lambda: FORMATS["jsonl"].scan(paths).num_rows)  # noqa: B023
        assert found == by_lines(monkeypatch, lambda: FORMATS["jsonl"].scan(paths).num_rows)  # noqa: B023


def test_arrow_itself_reads_the_rows(workplace: Path) -> None:
    """Not Python line by line, to which everything else falls back; for a column without a type there is no Arrow."""
    path = workplace / "rows.jsonl"
    path.write_text('{"a": "x", "n": 1}\n{"a": null, "n": 2}')
    kinds = {"a": ColumnKind.TEXT, "n": ColumnKind.INTEGER}
    rows = [row for batch in read_by_arrow(path, kinds) for row in batch.to_pylist()]
    assert rows == [{"a": "x", "n": 1}, {"a": None, "n": 2}]
    for wrong in ({**kinds, "n": ColumnKind.MIXED}, {**kinds, "n": ColumnKind.TEXT}, {"a": ColumnKind.TEXT}):
        with pytest.raises(pa.ArrowInvalid):
            list(read_by_arrow(path, wrong))


def test_types_are_those_of_datasets() -> None:
    kinds = {
        "a": ColumnKind.TEXT,
        "l": ListKind(RecordKind({"x": ColumnKind.INTEGER, "n": ListKind(ColumnKind.NULL)})),
        "z": ColumnKind.NULL,
        "e": RecordKind({}),
    }
    assert arrow_schema(kinds) == features_of(kinds).arrow_schema
    assert arrow_schema({"a": ColumnKind.TEXT, "m": ListKind(ColumnKind.MIXED)}) is None
