"""What prints to a pipe that nobody reads goes on, as does what its children print."""

from __future__ import annotations

import subprocess
import sys

import pytest

PRINTS = """
import subprocess, sys

import pytest
from rlhf_cli.process import lasting_output
with {context}:
    for number in range(20000):
        print("a line of some length, number", number)
    subprocess.run(["sh", "-c", "echo of a child"], check=True)
    print("went on", file=sys.stderr)
"""


def ended(context: str) -> subprocess.CompletedProcess[str]:
    """A program whose stdout is closed after its first two lines, as by `| head -2`."""
    command = f"'{sys.executable}' -c '{PRINTS.format(context=context)}' | head -2 > /dev/null; exit ${{PIPESTATUS[0]}}"
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.fault(21)
def test_a_closed_pipe_ends_nothing() -> None:
    done = ended("lasting_output()")
    assert (done.returncode, done.stderr) == (0, "went on\n")


@pytest.mark.fault(21)
def test_negative_control_without_it_the_program_ends() -> None:
    done = ended('open("/dev/null")')
    assert done.returncode != 0
    assert "BrokenPipeError" in done.stderr
