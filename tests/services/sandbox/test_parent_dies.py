"""A program ends with the process that started it, also after kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlhf_cli.services.sandbox.running import Isolation

PROGRAM = """
import ctypes, os, time
def call_itself(name):
    ctypes.CDLL(None).prctl(15, name, 0, 0, 0)
if os.fork() == 0:
    os.setsid()
    call_itself(b"{marker}-2")
    time.sleep(600)
call_itself(b"{marker}-1")
time.sleep(600)
"""
ASKS = """
import sys
from rlhf_cli.services.sandbox.running import run_code
run_code(sys.argv[1], isolation=sys.argv[2], timeout_s=600.0)
"""


def named(marker: str) -> list[int]:
    """Return the ids of processes with this name: a command line does not contain the source."""

    def name(folder: Path) -> str:
        try:
            return (folder / "comm").read_text()
        except OSError:
            return ""

    found = [folder for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    return [int(folder.name) for folder in found if name(folder).startswith(marker)]


@pytest.mark.fault(36)
def test_a_program_ends_with_whoever_asked_for_it(mode: Isolation) -> None:
    """It sleeps, so that no limit of time on a CPU ends it, and so does what it has started, in another session."""
    marker = f"sleeps-{mode[:8]}"
    asks = subprocess.Popen([sys.executable, "-c", ASKS, PROGRAM.format(marker=marker), mode])
    try:
        until = time.monotonic() + 30
        while len(named(marker)) < 2:
            assert asks.poll() is None
            assert time.monotonic() < until
            time.sleep(0.02)
    finally:
        asks.kill()
        asks.wait()
    until = time.monotonic() + 5
    while named(marker) and time.monotonic() < until:
        time.sleep(0.02)
    left = named(marker)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []
