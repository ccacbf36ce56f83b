"""The first rows, read without `datasets`, are those that a training reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_cli.data.first_rows import first_rows
from rlhf_cli.data.loading import load_split
from rlhf_cli.data.source import DataSource
from rlhf_cli.errors import DataError


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("q,a,n\n" + "".join(f"what is {n}?,it is {n},{n}\n" for n in range(9)))
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"q": "{n}", "a": [1.5, {n}.0]}}\n' for n in range(9)))
    return tmp_path


@pytest.mark.parametrize(
    "source",
    [
        DataSource(path="rows.csv", rename={"answer": "a"}, select=(2, 5)),
        DataSource(path="rows.csv", select=3),
        DataSource(path="rows.jsonl"),
        DataSource(world="toy_sums", args={"num_rows": 20}, select=(1, 9)),
        DataSource(path="rows.csv", split="train[50%:]"),
    ],
    ids=["renamed and selected", "the first", "lists", "a world", "a part, by datasets"],
)
def test_as_a_training_reads_them(files: Path, source: DataSource) -> None:
    template = "Q: {prompt}" if source.world else "Q: {q}"
    read = load_split([source], prompt=template, seed=3)
    ours = first_rows([source], prompt=template, transcripts=False, seed=3, limit=4)
    assert ours == [read[row] for row in range(min(4, len(read)))]
    assert ours[0]["prompt"].startswith("Q: ")


def test_a_column_that_is_not_there(files: Path) -> None:
    with pytest.raises(DataError, match="no column 'w'"):
        first_rows([DataSource(path="rows.csv")], prompt="{w}", transcripts=False, seed=0, limit=4)


def test_datasets_stays_out(files: Path) -> None:
    code = """
import sys
from rlhf_cli.data.first_rows import first_rows
from rlhf_cli.data.source import Source
first_rows([Source(path='rows.csv')], prompt='{q}', transcripts=False, seed=0, limit=4)
print('datasets' in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
