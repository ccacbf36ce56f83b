"""A look at data before a run: columns and first rows of every format, and faults named where they are."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlhf_cli.data.peeking import peek
from rlhf_cli.data.source import DataSource

GOOD = '{"prompt": "one", "n": 1}\n'


def write(workplace: Path, name: str, content: str | bytes) -> DataSource:
    raw = content.encode() if isinstance(content, str) else content
    (workplace / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return DataSource(path=name)


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "json", "json.gz", "csv", "csv.gz", "parquet"])
def test_every_format_gives_the_same_preview(workplace: Path, suffix: str) -> None:
    rows = [{"prompt": f"é{number}", "n": number} for number in range(20)]
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), workplace / "rows.parquet")
    else:
        lines = [f'{{"prompt": "é{number}", "n": {number}}}' for number in range(20)]
        content = {
            "jsonl": "\n".join(lines),
            "json": f"[{', '.join(lines)}]",
            "csv": "prompt,n\n" + "".join(f"é{number},{number}\n" for number in range(20)),
        }[suffix.removesuffix(".gz")]
        write(workplace, f"rows.{suffix}", content)
    found = peek(DataSource(path=f"rows.{suffix}"), limit=3)
    assert (found.columns, found.rows, found.num_rows) == (("prompt", "n"), rows[:3], 20)
    assert found.origin == f"rows.{suffix}"


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
@pytest.mark.parametrize(
    ("bad_line", "expected"),
    [
        ('{"prompt": "two", "n": 2,, }\n', ["malformed JSON", '"n": 2,,']),
        ('["prompt"]\n', ["not a JSON object", '["prompt"]']),
        ('{"prompt": "two", "n": "2"}\n', ["column 'n' holds integer", "and text", "2 (text)", "1 in rows.jsonl"]),
        ('{"prompt": ["two"], "n": 2}\n', ["column 'prompt'", "list", "one in rows.jsonl"]),
        ('{"prompt": "two", "n": true}\n', ["column 'n'", "true/false"]),
        (b'{"prompt": "caf\xe9", "n": 2}\n', ["byte 0xe9 at position 16", "not UTF-8", "caf"]),
        ('{"prompt": "cut \\ud83d", "n": 2}\n', ["\\ud83d is half of a character"]),
    ],
)
@pytest.mark.fault(42)
def test_jsonl_faults_name_file_line_and_text(workplace: Path, bad_line, expected, suffix: str, refusal) -> None:
    raw = bad_line if isinstance(bad_line, bytes) else bad_line.encode()
    # Row 12 on line 13: past the previewed rows, and after a blank line, which counts as a line.
    source = write(workplace, f"rows.{suffix}", (GOOD * 6 + "\n" + GOOD * 5).encode() + raw + GOOD.encode())
    message = refusal(peek, source, limit=2)
    assert f"where:    rows.{suffix}:13\n" in message
    for part in expected:
        assert part in message


@pytest.mark.parametrize(("name", "content"), [("a.jsonl", ""), ("a.json", "[]"), ("a.csv", "p,q\n")])
def test_a_file_without_rows(workplace: Path, name: str, content: str, refusal) -> None:
    message = refusal(peek, write(workplace, name, content))
    assert "no rows" in message
    assert f"where:    {name}" in message


def test_csv_faults(workplace: Path, refusal) -> None:
    message = refusal(peek, write(workplace, "rows.csv", 'q,a\n"two\nlines",1\nwhy, oh why,2\n'))
    assert "3 cells in a table of 2 columns" in message
    assert "rows.csv:4" in message
    assert "why, oh why,2" in message
    assert "two columns are named 'q'" in refusal(peek, write(workplace, "rows.csv", "q,q\n1,2\n"))
    assert "column 2 has no name" in refusal(peek, write(workplace, "rows.csv", "q,\n1,2\n"))
    message = refusal(peek, write(workplace, "rows.csv", 'q,a\nx,1\n"open,2\n'))
    assert "malformed CSV" in message
    assert "rows.csv:3" in message
    assert "rows.csv:2" in refusal(peek, write(workplace, "rows.csv", b"q,a\ncaf\xe9,1\n"))


@pytest.mark.fault(42)
def test_parquet_faults(workplace: Path, refusal) -> None:
    (workplace / "not.parquet").write_text("no")
    assert "not.parquet" in refusal(peek, DataSource(path="not.parquet"))
    pq.write_table(pa.table({"prompt": ["x"], "n": [1]}), workplace / "a.parquet")
    pq.write_table(pa.table({"prompt": ["x"], "n": ["1"]}), workplace / "b.parquet")
    message = refusal(peek, DataSource(path=["a.parquet", "b.parquet"]))
    assert "two Parquet files have different columns" in message
    assert "n: int64, as in a.parquet" in message
    pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), workplace / "none.parquet")
    assert "no rows" in refusal(peek, DataSource(path="none.parquet"))


@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv"])
@pytest.mark.parametrize("sign", [",", ";", "\t", "|"])
def test_a_table_with_another_separator(workplace: Path, sign: str, name: str) -> None:
    source = write(workplace, name, f'prompt{sign}answer\n"1+1{sign} say"{sign}2\n')
    assert peek(source, limit=2).rows == [{"prompt": f"1+1{sign} say", "answer": 2}]


def test_negative_control_one_column_needs_no_separator(workplace: Path) -> None:
    assert peek(write(workplace, "rows.csv", "prompt\na;b\n"), limit=2).rows == [{"prompt": "a;b"}]
