"""Types lines as a bash would have them, in a folder, with this checkout's `rlhf` and no hub."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.documents.quoted_commands import ROOT


def type_script(script: str, place: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script that may call "$PYTHON", until something in it fails; return what it printed and its exit code."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHON": sys.executable, "HF_HUB_OFFLINE": "1", **variables}
    words = ["bash", "-euc", script]
    return subprocess.run(
        words, cwd=place, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
