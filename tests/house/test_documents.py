"""The documents about the house name files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import structure

PATH = re.compile(r"`((?:[a-z_]+/)+[a-z_]*)(?:\.py)?(?:\.[a-z_]+)?`")


def missing(text: str, root: Path = structure.ROOT) -> list[str]:
    """Return the paths in backticks that are neither in the package nor at the root of the project."""
    places = [root / structure.PACKAGE, root]
    return [
        path
        for path in PATH.findall(text)
        if not any((place / path).is_dir() or (place / path).with_suffix(".py").is_file() for place in places)
    ]


@pytest.mark.parametrize("name", ["docs/development/architecture.md", "CONTRIBUTING.md"])
def test_files_that_are_named_are_there(name: str) -> None:
    text = (structure.ROOT / name).read_text(encoding="utf-8")
    assert len(PATH.findall(text)) > 5
    assert missing(text) == []


def test_negative_control_a_file_that_is_gone_is_noticed() -> None:
    assert missing("`rewards/stack/gates` and `rewards/gates.py` and `trainer/x`") == ["rewards/gates", "trainer/x"]


NAMED_FILE = re.compile(r"(?<![\w./-])((?:[a-z_0-9]+/)+[a-z_0-9]+\.py)\b")


def test_code_and_pages_name_python_files_that_are_there() -> None:
    files = [*(structure.ROOT / structure.PACKAGE).rglob("*.py"), *(structure.ROOT / "docs").rglob("*.md")]
    named = [(file, name) for file in files for name in NAMED_FILE.findall(file.read_text(encoding="utf-8"))]
    assert len(named) > 50
    places = [structure.ROOT, structure.ROOT / structure.PACKAGE]
    gone = [one for one in named if not any((place / one[1]).is_file() for place in places)]
    ours = {"tests", "scripts", "rlhf_cli", *structure.room_graph(structure.file_graph(structure.modules()))}
    is_written_by_command = structure.ROOT / "docs" / "development" / "mutants.md"
    assert [one for one in gone if one[1].split("/")[0] in ours and one[0] != is_written_by_command] == []


def test_every_room_is_in_the_table_or_the_drawing() -> None:
    text = (structure.ROOT / "docs" / "development" / "architecture.md").read_text(encoding="utf-8")
    rooms = {path.parent.name for path in (structure.ROOT / structure.PACKAGE).glob("*/__init__.py")}
    assert {room for room in rooms if f"{room}/" not in text} == set()
