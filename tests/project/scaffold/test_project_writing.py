"""A project is written whole or not at all, and over nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_cli.errors import UserError
from rlhf_cli.project.scaffold.project_files import write_project

FILES = {"conf/exp/first.yaml": "a: 1\n", "README.md": "# x\n", "data/rows.jsonl": "{}\n"}


def everything(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_what_fails_half_way_is_taken_back(tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("mine")
    (tmp_path / "data").write_text("a file where a folder is wanted")
    with pytest.raises(UserError, match="cannot be written"):
        write_project(tmp_path, FILES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "other.txt"]
    with pytest.raises(UserError, match="cannot be written"):
        write_project(tmp_path / "new", {"a": "1", "a/b": "2"})
    assert not (tmp_path / "new").exists()


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(UserError, match="a project is a folder"):
        write_project(tmp_path / "f" / "g", FILES)
