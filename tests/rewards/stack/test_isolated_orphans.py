"""Isolated workers end with their process, and survive the thread that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from rlhf_cli.rewards.stack.isolated import Isolated

MINE = """
import os, pathlib, re, time

def tell():
    pathlib.Path(f"pid-{os.getpid()}").touch()

def sleeps(completions, **kwargs):
    tell()
    time.sleep(600)

def spins(completions, **kwargs):
    tell()
    re.match(r"(a+)+$", "a" * 80 + "b")  # holds the interpreter's lock: no thread of the worker's would ever run

def slow_at_first(completions, **kwargs):
    if not os.path.exists("ended"):
        tell()
        time.sleep(600)
    return [1.0]
"""
ASKS = """
import sys
from rlhf_cli.rewards.stack.isolated import Isolated

if __name__ == "__main__":
    Isolated(sys.argv[1], {}, timeout_s=None)(completions=["a", "b"], prompts=["", ""])
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "asks.py").write_text(ASKS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.fault(34)
@pytest.mark.parametrize("function", ["sleeps", "spins"])
def test_a_worker_that_hangs_ends_with_the_process_that_was_killed(place: Path, function: str) -> None:
    asks = subprocess.Popen([sys.executable, "asks.py", f"./mine.py:{function}"])
    try:
        until = time.monotonic() + 60
        while not (told := list(place.glob("pid-*"))):
            assert asks.poll() is None
            assert time.monotonic() < until
            time.sleep(0.02)
        # The tracker of the standard library's multiprocessing ends with the last of the workers.
        started = psutil.Process(asks.pid).children(recursive=True)
        assert {int(file.name.removeprefix("pid-")) for file in told} <= {process.pid for process in started}
    finally:
        asks.kill()
        asks.wait()
    _, alive = psutil.wait_procs(started, timeout=5)
    for process in alive:
        process.kill()
    assert alive == []


@pytest.mark.fault(17)
def test_rows_are_scored_after_all_workers_ended_at_once(place: Path) -> None:
    """As by a signal for every process of a job: seen in a real run, whose pool gave up, so that it failed unsaved."""
    isolated = Isolated("./mine.py:slow_at_first", {}, timeout_s=60.0)
    num_workers = min(8, os.cpu_count() or 1)
    answers: list[list[object]] = []
    asks = threading.Thread(
        target=lambda: answers.append(isolated(completions=["a"] * num_workers, prompts=[""] * num_workers))
    )
    asks.start()
    try:
        until = time.monotonic() + 60
        while len(told := list(place.glob("pid-*"))) < num_workers:
            assert time.monotonic() < until
            time.sleep(0.02)
        (place / "ended").touch()
        for file in told:
            pid = int(file.name.removeprefix("pid-"))
            assert os.getpgid(pid) != os.getpgid(0)  # nor does a signal to our group reach it
            os.kill(pid, signal.SIGTERM)
        asks.join(60)
        assert answers == [[1.0] * num_workers]
    finally:
        isolated.close()
