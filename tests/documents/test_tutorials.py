"""Types the commands of the tutorials, each page in an empty folder; a block with a title needs what it names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents.quoted_commands import ROOT

pytestmark = pytest.mark.slow
PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
_RUN = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SHELL = """
set -eu
rlhf() { "%(python)s" -m rlhf_cli "$@"; }
python() { "%(python)s" "$@"; }
"""


def test_there_are_tutorials() -> None:
    assert len(PAGES) >= 7


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_what_it_says_to_type_ends_well(page: Path, tmp_path: Path) -> None:
    commands = _RUN.findall(page.read_text(encoding="utf-8"))
    script = _SHELL % {"python": sys.executable} + "".join(commands)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline", "HOME": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
