"""A rank ends although the interpreter's clearing up would not, and says all it had to."""

from __future__ import annotations

import subprocess
import sys

import pytest

STUCK = """
import atexit, sys
from rlhf_cli.process import leave

class Stuck:
    def __del__(self, running=sys.is_finalizing):
        while running():  # only while the interpreter clears up
            pass

kept = Stuck()
atexit.register(print, "registered")
print("said", end=" ")
"""


def ended(last_line: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", STUCK + last_line]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


def test_it_leaves_with_its_code_and_its_words() -> None:
    done = ended("leave(3)", 60)
    assert (done.returncode, done.stdout) == (3, "said registered\n")


def test_control_python_s_own_end_never_comes() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        ended("sys.exit(3)", 2)
