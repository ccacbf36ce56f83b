"""Test that files which the documents name exist; `make site` checks the links within docs/."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import structure

_LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")
_PATH = re.compile(r"`((?:[a-z_]+/)+[a-z_]*)(?:\.py)?(?:\.[a-z_]+)?`")
_PYTHON = re.compile(r"(?<![\w./-])((?:[a-z_0-9]+/)+[a-z_0-9]+\.py)\b")
ROOT = structure.ROOT
PLACES = (ROOT / structure.PACKAGE, ROOT)


def broken_links(document: Path) -> list[str]:
    text = document.read_text(encoding="utf-8")
    return [target for target in _LINK.findall(text) if not (document.parent / target).exists()]


def missing(text: str) -> list[str]:
    """Return the paths in backticks that are neither in the package nor at the root of the project."""

    def is_there(path: str) -> bool:
        files = [(place / path).with_suffix(suffix) for place in PLACES for suffix in (".py", ".yaml")]
        return any(file.is_file() for file in files) or any((place / path).is_dir() for place in PLACES)

    return [path for path in _PATH.findall(text) if not is_there(path)]


def test_linked_files_exist() -> None:
    for name in ("README.md", "AGENTS.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        assert broken_links(ROOT / name) == [], name


def test_the_site_lists_every_page() -> None:
    listed = set(re.findall(r"(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert listed == pages


@pytest.mark.parametrize("name", ["docs/development/architecture.md", "CONTRIBUTING.md"])
def test_named_folders_and_files_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert len(_PATH.findall(text)) > 5
    assert missing(text) == []


def test_python_files_named_in_code_and_pages_exist() -> None:
    files = [*(ROOT / structure.PACKAGE).rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "Makefile"]
    named = [(file, name) for file in files for name in _PYTHON.findall(file.read_text(encoding="utf-8"))]
    assert len(named) > 50
    missing_files = [(file, name) for file, name in named if not any((place / name).is_file() for place in PLACES)]
    ours = {"tests", "scripts", "rlhf_cli", *map(structure.room_of, structure.modules())}
    generated = ROOT / "docs" / "development" / "mutants.md"  # of an earlier commit
    assert [(file, name) for file, name in missing_files if name.split("/")[0] in ours and file != generated] == []


def test_every_room_is_in_the_table_or_the_drawing() -> None:
    text = (ROOT / "docs" / "development" / "architecture.md").read_text(encoding="utf-8")
    rooms = {path.parent.name for path in (ROOT / structure.PACKAGE).glob("*/__init__.py")}
    assert {room for room in rooms if f"{room}/" not in text} == set()


def test_negative_control(tmp_path: Path) -> None:
    document = tmp_path / "README.md"
    document.write_text("[here](README.md#top) [gone](docs/gone.md) [away](https://example.org/x.md)")
    assert broken_links(document) == ["docs/gone.md"]
    assert missing("`rewards/stack/component` and `rewards/gates.py` and `trainer/x`") == ["rewards/gates", "trainer/x"]
