"""Types the commands of the tutorials, each page in an empty folder; a block with a title needs what it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documents.quoted_commands import ROOT
from tests.documents.typed_script import type_script

pytestmark = pytest.mark.slow
PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
_RUN = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SHELL = """
rlhf() { "$PYTHON" -m rlhf_cli "$@"; }
python() { "$PYTHON" "$@"; }
"""


def test_there_are_tutorials() -> None:
    assert len(PAGES) >= 7


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_what_it_says_to_type_ends_well(page: Path, tmp_path: Path) -> None:
    commands = _RUN.findall(page.read_text(encoding="utf-8"))
    done = type_script(_SHELL + "".join(commands), tmp_path, WANDB_MODE="offline", HOME=str(tmp_path))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
