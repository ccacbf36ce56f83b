"""Shared by the tests of the data room."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import datasets
import pytest

from rlhf_cli.errors import DataError


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and an Arrow cache of this test's own."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return folder


@pytest.fixture
def refusal() -> Callable[..., DataError]:
    """`refusal(function, *args, **kwargs)`: the DataError that the call raises."""

    def call(function: Callable[..., object], *args: object, **kwargs: object) -> DataError:
        with pytest.raises(DataError) as caught:
            function(*args, **kwargs)
        return caught.value

    return call


@pytest.fixture
def jsonl(workplace: Path) -> Callable[..., str]:
    """`jsonl(rows, name)`: writes the rows into the working directory, returns the name."""

    def write(rows: Iterable[object], name: str = "rows.jsonl") -> str:
        (workplace / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return name

    return write
