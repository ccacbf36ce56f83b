"""The command line of a sandbox: what it shows to the launcher inside is all that the launcher imports."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_cli.services.sandbox.running import command, protections

_IMPORTED = """
import sys
import rlhf_cli.services.sandbox.launcher
print(*[module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "rlhf_cli"], sep="\\n")
"""


def test_bubblewrap_is_shown_every_file_that_the_launcher_imports() -> None:
    job = {"visible": [], "python": sys.executable, "max_file_bytes": 1 << 20}
    words = command("bubblewrap", job, 3, 4)
    shown = {Path(words[place + 2]) for place, word in enumerate(words) if word == "--ro-bind"}
    done = subprocess.run([sys.executable, "-c", _IMPORTED], capture_output=True, text=True, check=True)
    needed = {Path(line) for line in done.stdout.splitlines()}
    assert len(needed) >= 3
    assert needed <= shown
    assert all(file.is_file() for file in shown)


def test_where_bubblewrap_is_installed_it_works() -> None:
    """The other tests skip a sandbox that fails to start; this one reports it."""
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed here")
    if subprocess.run(["bwrap", "--ro-bind", "/", "/", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine does not let bubblewrap make namespaces")
    assert protections("bubblewrap")["files_hidden"] is True
