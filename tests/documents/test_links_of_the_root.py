"""Every relative link of a document at the root leads to a file; those of docs/ are held by the site's strict build."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documents.quoted_commands import ROOT

_LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")
DOCUMENTS = ("README.md", "AGENTS.md", "CONTRIBUTING.md", "CHANGELOG.md")


def broken_links(document: Path) -> list[str]:
    text = document.read_text(encoding="utf-8")
    return [target for target in _LINK.findall(text) if not (document.parent / target).exists()]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    assert broken_links(ROOT / name) == []


def test_the_readme_has_every_page_of_the_documents() -> None:
    linked = set(_LINK.findall((ROOT / "README.md").read_text(encoding="utf-8")))
    pages = {page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert sorted(pages - linked - {"docs/index.md"}) == []


def test_negative_control(tmp_path: Path) -> None:
    document = tmp_path / "README.md"
    document.write_text("[here](README.md#top) [gone](docs/gone.md) [away](https://example.org/x.md)")
    assert broken_links(document) == ["docs/gone.md"]
