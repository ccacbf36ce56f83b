"""Types what the recipes say to type on a laptop: few steps on the built-in model, on files, with the hub forbidden."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents.quoted_commands import ROOT, quoted_commands

pytestmark = pytest.mark.slow
SHARED = ROOT.parent / "shared" / "data"
FILES = {"gsm8k-test.jsonl": "gsm8k-test.jsonl", "pairs.jsonl.gz": "hh-harmless.jsonl.gz"}
"""Name in the recipes -> file of real data."""
PAGE = "docs/how-to/recipes.md"
COMMANDS = [one for one in quoted_commands() if one.place.startswith(PAGE) and "model=tiny" in one.words]


@pytest.mark.parametrize("words", [one.words for one in COMMANDS], ids=[one.words[1] for one in COMMANDS])
def test_a_laptop_takes_a_few_steps(words: tuple[str, ...], tmp_path: Path) -> None:
    if not SHARED.is_dir():
        pytest.skip("real data files (../shared/data) are not on this machine")
    for name, source in FILES.items():
        shutil.copyfile(SHARED / source, tmp_path / name)
    done = subprocess.run(
        [sys.executable, "-m", "rlhf_cli", *words, "track=none", "run.name=few"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert next(tmp_path.glob("runs/*/few/model/model.safetensors"))
