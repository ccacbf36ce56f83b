"""Data files that are pipes or devices, and numbers that Python does not read: one message with file and row."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlhf_cli.data.peeking import peek
from rlhf_cli.data.source import DataSource
from rlhf_cli.errors import DataError


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "parquet", "jsonl.gz"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_file_that_is_none_is_refused(suffix: str, kind: str, tmp_path: Path) -> None:
    file = tmp_path / f"rows.{suffix}"
    if kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")
    with pytest.raises(DataError) as refused:
        peek(DataSource(path=str(file), name="data"), limit=1)
    assert refused.value.where == "data.path"
    assert str(file) in str(refused.value.got)


@pytest.mark.parametrize(("suffix", "where"), [("jsonl", "rows.jsonl:2"), ("json", "rows.json")])
def test_a_number_of_thousands_of_digits_is_refused_with_its_row(suffix: str, where: str, tmp_path: Path) -> None:
    rows = ['{"prompt": "a", "answer": 1}', f'{{"prompt": "a", "answer": {"9" * 6000}}}']
    file = tmp_path / f"rows.{suffix}"
    file.write_text("\n".join(rows) + "\n" if suffix == "jsonl" else f"[{','.join(rows)}]")
    with pytest.raises(DataError) as refused:
        peek(DataSource(path=str(file), name="data"), limit=2)
    assert str(refused.value.where).endswith(where)
