"""No isolated worker outlives the process that wanted its scores, and none is lost with a thread that asked for one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import psutil
import pytest
from pebble import ProcessFuture

from rlhf_cli.rewards.stack.isolated import Isolated, ProcessEnded, _outcome

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

def where(completions, **kwargs):
    return [float(os.getpid())]
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


def test_workers_outlive_the_thread_that_first_asked(place: Path) -> None:
    """The kernel ends them with the thread that started them; here two threads ask, the second when the first is gone.

    A third of the rows of a worker that was lost would be tried again, by another process: the same ones answer.
    """
    isolated = Isolated("./mine.py:where", {}, timeout_s=30.0)
    answers: list[list[object]] = []

    def ask() -> None:
        answers.append(isolated(completions=["a"] * 8, prompts=[""] * 8))

    try:
        for _ in range(2):
            thread = threading.Thread(target=ask)
            thread.start()
            thread.join()
            time.sleep(0.3)
        (first, second) = answers
        children = {process.pid for process in psutil.Process().children(recursive=True)}
        assert {int(float(str(pid))) for pid in first} <= children
        assert {*second} <= {float(pid) for pid in children}
    finally:
        isolated.close()


@pytest.mark.fault(17)
def test_rows_are_scored_when_all_workers_were_ended_at_once(place: Path) -> None:
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


def test_a_pool_that_has_given_up_is_replaced(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pebble says so where all processes had expired: to those that wait, and to whoever asks afterwards."""
    waits: ProcessFuture = ProcessFuture()
    waits.set_exception(BrokenProcessPool("All workers expired"))
    assert isinstance(_outcome(waits, None), ProcessEnded)
    isolated = Isolated("./mine.py:where", {}, timeout_s=60.0)

    def given_up(*_: object, **__: object) -> None:
        raise RuntimeError("Unexpected error within the Pool")

    try:
        pool = isolated._processes()
        monkeypatch.setattr(pool, "schedule", given_up)
        (answer,) = isolated(completions=["a"], prompts=[""])
        assert isinstance(answer, float)
        assert isolated._processes() is not pool
    finally:
        isolated.close()
