"""Whether a process lives, and whether a signal has stopped it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from rlhf_cli.process import is_stopped


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_process_is_stopped_until_it_is_told_to_go_on() -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        for told, expected in ((signal.SIGSTOP, True), (signal.SIGCONT, False)):
            process.send_signal(told)
            until = time.monotonic() + 20
            while is_stopped(process.pid) != expected and time.monotonic() < until:
                time.sleep(0.01)
            assert is_stopped(process.pid) == expected
    finally:
        process.kill()
        process.wait()
    assert not is_stopped(process.pid)
    assert not is_stopped(os.getpid())
