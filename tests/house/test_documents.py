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


def test_every_room_is_in_the_table_or_the_drawing() -> None:
    text = (structure.ROOT / "docs" / "development" / "architecture.md").read_text(encoding="utf-8")
    rooms = {path.parent.name for path in (structure.ROOT / structure.PACKAGE).glob("*/__init__.py")}
    assert {room for room in rooms if f"{room}/" not in text} == set()
