"""No program outlives the process that wanted its answer, however that ends: kill -9 leaves nobody to end it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlhf_cli.sandbox.running import Isolation

ASKS = """
import sys
from rlhf_cli.sandbox.running import run_code
source = "import time\\nopen('/proc/self/comm', 'w').write({marker!r})\\ntime.sleep(600)"
run_code(source, isolation={mode!r}, timeout_s=600.0)
"""


def named(marker: str) -> bool:
    """Whether a process calls itself so: the program's command line says nothing of its source."""

    def name(folder: Path) -> str:
        try:
            return (folder / "comm").read_text().strip()
        except OSError:
            return ""

    return any(name(folder) == marker for folder in Path("/proc").iterdir() if folder.name.isdigit())


@pytest.mark.fault(36)
def test_a_program_ends_with_whoever_asked_for_it(mode: Isolation) -> None:
    """It sleeps, so that no limit of time on a CPU ends it, and it would for ten minutes."""
    marker = f"sleeps-{mode[:8]}"
    asks = subprocess.Popen([sys.executable, "-c", ASKS.format(marker=marker, mode=mode)])
    try:
        until = time.monotonic() + 30
        while not named(marker):
            assert asks.poll() is None
            assert time.monotonic() < until
            time.sleep(0.02)
    finally:
        asks.kill()
        asks.wait()
    until = time.monotonic() + 5
    while named(marker) and time.monotonic() < until:
        time.sleep(0.02)
    assert not named(marker)
