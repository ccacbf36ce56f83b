"""Rewards in processes that can be killed: a crash costs a row, workers end with their process, pools with a call."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy
import psutil
import pytest

from rlhf_cli.errors import RewardFailed
from rlhf_cli.rewards.stack import isolated as workers
from rlhf_cli.rewards.stack.calling import call_within
from rlhf_cli.rewards.stack.component import Component, RewardOutcome, RewardTimeout
from rlhf_cli.rewards.stack.isolated import Isolated
from rlhf_cli.rewards.stack.reward_functions import resolve
from rlhf_cli.rewards.stack.reward_stack import RewardStack

MINE = """
import asyncio, os, subprocess, sys, time

class Mine(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")

def does(completions, plus=0.0, **kwargs):
    (text,) = completions
    if text == "hang":
        time.sleep(3600)
    elif text == "exit":
        sys.exit(4)
    elif text.startswith("_exit"):
        os._exit(int(text[-1]))
    elif text.startswith("die"):
        with open(text[3:], "a") as file:
            file.write("x")
        os._exit(1)
    elif text == "raise":
        raise ValueError("mine")
    elif text == "own":
        raise Mine("this", "that")
    elif text == "print":
        for _ in range(20):
            print("x" * 100_000)
    elif text == "none":
        return [None]
    elif text == "tokens":
        return [[0.5, None, 1.0]]
    return [len(text) + plus]

async def later(completions, answer, **kwargs):
    await asyncio.sleep(0.01)
    if completions == ["raise"]:
        raise ValueError("later")
    return [float(answer[0])]

def where(completions, **kwargs):
    return [float(os.getpid())]

def starts(completions, group=None, **kwargs):
    return [float(subprocess.Popen(["sleep", "600"], process_group=group).pid)]
"""

Made = Callable[..., Isolated]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    """`made("does", plus=1.0, timeout_s=1)`: the function of that name in a file of the user's."""
    (tmp_path / "mine.py").write_text(MINE)
    with contextlib.ExitStack() as closing:

        def call(name: str, timeout_s: float | None = 60.0, **args: Any) -> Isolated:
            isolated = Isolated(f"{tmp_path}/mine.py:{name}", args, timeout_s=timeout_s)
            closing.callback(isolated.close)
            return isolated

        yield call


def batch(*completions: str, **columns: list[Any]) -> dict[str, Any]:
    return {"prompts": [f"p{i}" for i in range(len(completions))], "completions": list(completions), **columns}


def told(score: Any) -> Any:
    return f"{type(score).__name__}: {score}" if isinstance(score, BaseException) else score


def test_rows_are_scored_in_other_processes_that_are_replaced(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the function leaks is lost with its process."""
    assert made("does", plus=0.5)(**batch("a", "bb", "ccc", "none")) == [1.5, 2.5, 3.5, None]
    scores = made("later")(**batch("a", "raise", "c", answer=["1", "2", "3"]))
    assert list(map(told, scores)) == [1.0, "ValueError: later", 3.0]
    monkeypatch.setattr(workers, "_MAX_WORKERS", 1)
    monkeypatch.setattr(workers, "_ROWS_A_WORKER", 2)
    pids = made("where")(**batch("a", "b", "c", "d", "e"))
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [2, 2, 1]
    assert os.getpid() not in pids


@pytest.mark.fault(34)
def test_a_failing_row_costs_only_that_row(made: Made, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    expected = {
        "raise": "ValueError: mine",
        "own": "Mine: this and that",  # its class takes two arguments, and is of no module that exists here
        "exit": "SystemExit: 4",
        "_exit3": "ProcessEnded: its process ended with code 3",
        "_exit0": "ProcessEnded: its process ended with code 1",
        "print": 5.0,
        "good": 4.0,
    }
    isolated = made("does")
    scores = dict(zip(expected, map(told, isolated(**batch(*expected))), strict=True))
    for text, score in expected.items():
        found = scores[text]
        assert str(found).startswith(score) if isinstance(score, str) else found == score, (text, found)
    assert isolated(**batch("a", "bb")) == [1.0, 2.0]  # and it goes on
    assert len(capfd.readouterr().out) >= 2_000_000  # negative control: it was printed
    isolated(**batch(f"die{tmp_path / 'died'}"))
    assert (tmp_path / "died").read_text() == "xxx"  # a row whose process ends is tried twice more


@pytest.mark.fault(31)
def test_a_row_that_hangs_is_killed(made: Made) -> None:
    isolated = made("does", timeout_s=1.0)
    isolated(**batch("warm", "up"))
    before = {child.pid for child in psutil.Process().children()}
    started = time.perf_counter()
    first, second, third = isolated(**batch("a", "hang", "ccc"))
    assert 1.0 <= time.perf_counter() - started < 5.0
    assert (first, third) == (1.0, 3.0)
    assert isinstance(second, RewardTimeout)
    assert "within 1 s" in str(second)
    deadline = time.monotonic() + 10
    while before <= {child.pid for child in psutil.Process().children()}:
        assert time.monotonic() < deadline, "no process was killed"
        time.sleep(0.05)


class TestInTheStack:
    def evaluated(self, isolated: Isolated, on_error: Any, *completions: str) -> RewardOutcome:
        ids = [[1, 2, 3]] * len(completions)
        logs: dict[str, Any] = {"trainer_state": object(), "log_extra": lambda *_: None}
        with contextlib.closing(RewardStack([Component("mine", isolated, on_error=on_error)])) as stack:
            return stack.evaluate(**batch(*completions, completion_ids=ids), **logs)["mine"]

    def test_each_failure_is_its_rows(self, made: Made) -> None:
        found = self.evaluated(made("does", timeout_s=1.0), -1.0, "a", "hang", "_exit3", "exit", "tokens", "none")
        assert found.raw == [1.0, None, None, None, 1.5, None]
        assert found.fixed == [None, -1.0, -1.0, -1.0, None, None]
        assert (found.timeouts, found.num_errors, found.num_excluded, found.calls) == (1, 3, 1, 6)
        assert found.tokens[4] == [0.5, None, 1.0]

    def test_an_error_has_the_traceback_of_the_worker(self, made: Made) -> None:
        with pytest.raises(RewardFailed) as caught:
            self.evaluated(made("does"), "raise", "a", "raise")
        shown = "".join(traceback.format_exception(caught.value.__cause__))
        assert 'raise ValueError("mine")' in shown
        assert shown.rstrip().endswith("ValueError: mine")


@pytest.mark.parametrize("group", [None, 0])
def test_close_ends_the_processes_and_those_that_the_function_started(made: Made, group: int | None) -> None:
    """Those in the worker's process group, and those that lead one of their own, as a shell's jobs do."""
    isolated = made("starts", group=group)
    before = set(psutil.Process().children(recursive=True))
    pids = {int(pid) for pid in cast(list[float], isolated(**batch("a", "b")))}
    started = set(psutil.Process().children(recursive=True)) - before
    assert pids < {child.pid for child in started}  # negative control
    assert pids & {os.getpgid(pid) for pid in pids} == (set() if group is None else pids)  # another one
    isolated.close()
    _, alive = psutil.wait_procs(started, timeout=10)
    left = [child for child in alive if "resource_tracker" not in " ".join(child.cmdline())]
    for child in left:
        child.kill()
    assert left == []
    isolated.close()  # again: nothing to do


OWN = "def says(completions, what=None, **_):\n    return what\n"


@pytest.fixture
def own(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_resolved", {})
    (place / "own.py").write_text(OWN)


def scored_alone(returned: object) -> Any:
    return workers._score_row("./own.py:says", {"what": returned}, {"completions": "ab", "answer": "x"})


@pytest.mark.parametrize(
    ("returned", "score"),
    [
        *(([0.5], 0.5), ((2,), 2), ([None], None), ([True], 1), ([(1, 2.5)], (1, 2.5))),
        *((numpy.array([0.25]), 0.25), ([numpy.float32(0.25)], 0.25), ([numpy.array([1, 2])], [1, 2])),
    ],
)
def test_a_score_comes_back_as_plain_numbers(own: None, returned: object, score: object) -> None:
    found, failure = scored_alone(returned)
    assert (found, failure) == (score, None)
    assert {type(found)} <= {int, float, type(None), list, tuple}


@pytest.mark.parametrize(
    ("returned", "kind", "said"),
    [
        *((value, "ValueError", f"it returned {value} for 1 completion") for value in ([], [1.0, 2.0], {"a": 1}, 3.0)),
        ("a", "ValueError", "it returned 'a' for 1 completion"),
        ([{"a": 1}], "TypeError", "it returned dict {'a': 1}, which is no number"),
    ],
)
def test_what_is_no_score_is_told_in_words(own: None, returned: object, kind: str, said: str) -> None:
    score, failure = scored_alone(returned)
    assert (score, failure[:2]) == (None, (kind, said))
    assert "Traceback" in failure[2]


@pytest.mark.parametrize("name", ["says", "not_there"])
def test_what_a_worker_does_before_its_first_row(own: None, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """It dies with its parent, has its own process group, prints no secrets, and never ends with code 0."""
    done: list[object] = []
    monkeypatch.setattr(workers, "die_with", done.append)
    monkeypatch.setattr(os, "setsid", lambda: done.append("setsid"))
    monkeypatch.setattr(workers, "safe_output_for_good", done.append)
    monkeypatch.setattr(os, "_exit", lambda status: done.append(status))
    workers._prepare(f"./own.py:{name}", {}, ["secret"], 17)
    ending: Any = os._exit
    for status in (0, 3):
        ending(status)
    assert done == [17, "setsid", ["secret"], 1, 3]
    assert len(workers._resolved) == (name == "says")


HANGS = """
import os, pathlib, re, time

def sleeps(completions, **kwargs):
    if os.path.exists("ended"):
        return [1.0]
    pathlib.Path(f"pid-{os.getpid()}").touch()
    time.sleep(600)

def spins(completions, **kwargs):
    pathlib.Path(f"pid-{os.getpid()}").touch()
    re.match(r"(a+)+$", "a" * 80 + "b")  # holds the interpreter's lock: no thread of the worker's would ever run
"""
ASKS = """
import sys
from rlhf_cli.rewards.stack.isolated import Isolated

if __name__ == "__main__":
    Isolated(sys.argv[1], {}, timeout_s=None)(completions=["a", "b"], prompts=["", ""])
"""


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(HANGS)
    (tmp_path / "asks.py").write_text(ASKS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def started(folder: Path, count: int, asks: subprocess.Popen[bytes] | None = None) -> set[int]:
    """Wait until this many workers have begun to hang; return their process ids."""
    until = time.monotonic() + 60
    while len(told := list(folder.glob("pid-*"))) < count:
        assert asks is None or asks.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)
    return {int(file.name.removeprefix("pid-")) for file in told}


@pytest.mark.fault(34)
@pytest.mark.parametrize("function", ["sleeps", "spins"])
def test_a_worker_that_hangs_ends_with_the_process_that_was_killed(hanging: Path, function: str) -> None:
    with subprocess.Popen([sys.executable, "asks.py", f"./mine.py:{function}"]) as asks:
        try:
            pids = started(hanging, 1, asks)
            # The tracker of the standard library's multiprocessing ends with the last of the workers.
            children = psutil.Process(asks.pid).children(recursive=True)
        finally:
            asks.kill()
    assert pids <= {process.pid for process in children}
    _, alive = psutil.wait_procs(children, timeout=5)
    for process in alive:
        process.kill()
    assert alive == []


@pytest.mark.fault(17)
def test_rows_are_scored_after_all_workers_ended_at_once(hanging: Path) -> None:
    """As by a signal for every process of a job: seen in a real run, whose pool gave up, so that it failed unsaved."""
    num_workers = min(8, os.cpu_count() or 1)
    rows = {"completions": ["a"] * num_workers, "prompts": [""] * num_workers}
    with contextlib.closing(Isolated("./mine.py:sleeps", {}, timeout_s=60.0)) as isolated, ThreadPoolExecutor() as pool:
        answer = pool.submit(isolated, **rows)
        pids = started(hanging, num_workers)
        (hanging / "ended").touch()
        for pid in pids:
            assert os.getpgid(pid) != os.getpgid(0)  # nor does a signal to our group reach it
            os.kill(pid, signal.SIGTERM)
        assert answer.result(60) == [1.0] * num_workers


def test_a_stranger_with_the_number_of_a_dead_worker_is_not_killed() -> None:
    """The kernel gives numbers again, to a shell or to another training: only orphans of a session are killed."""
    isolated = Isolated("./mine.py:f", {}, timeout_s=1.0)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as stranger:
        isolated._workers = {stranger.pid}
        isolated.close()
        assert (stranger.communicate(b"\n"), stranger.returncode) == ((None, None), 0)
    assert stranger.pid not in isolated._workers


POOLS = """
import multiprocessing, os, time
from concurrent.futures import ProcessPoolExecutor

def length(text):
    return float(len(text))

def sleeps(text):
    with open("pids", "a") as stream:
        print(os.getpid(), file=stream)
    time.sleep(600)

def pool(completions, how=None, **columns):
    with multiprocessing.get_context(how).Pool(1) as workers:
        return workers.map(length, completions)

def executor(completions, how=None, **columns):
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(how)) as workers:
        return list(workers.map(length, completions))

def process(completions, how=None, **columns):
    child = multiprocessing.get_context(how).Process(target=length, args=["a"])
    child.start()
    child.join(60)
    return [3.0 if child.exitcode == 0 else None] * len(completions)

def hangs(completions, **columns):
    with ProcessPoolExecutor(1) as workers:
        return list(workers.map(sleeps, completions))
"""

NO_ALARM = pytest.mark.timeout(0)  # its alarm would be among those that are tested


@pytest.fixture
def pools(write: Callable[[str, str], Path]) -> None:
    write("pools.py", POOLS)


@NO_ALARM
@pytest.mark.parametrize("is_isolated", [True, False], ids=["isolated", "here"])
@pytest.mark.parametrize(
    ("name", "how"),
    [("pool", None), ("pool", "spawn"), ("executor", "spawn"), ("process", None), ("executor", "forkserver")],
)
def test_a_pool_of_processes_works(pools: None, name: str, how: str | None, is_isolated: bool) -> None:
    fn, args = f"./pools.py:{name}", {"how": how} if how else {}
    if not is_isolated:
        assert resolve(fn, args, where="x")(completions=["two"]) == [3.0]
        return
    with contextlib.closing(Isolated(fn, args, timeout_s=60.0)) as reward:
        assert reward(completions=["two"]) == [3.0]


def _sleeping() -> list[psutil.Process]:
    time.sleep(0.2)
    return [one for one in psutil.Process().children(recursive=True) if one.status() != psutil.STATUS_ZOMBIE]


@NO_ALARM
def test_a_pool_ends_with_a_call_that_is_out_of_time(pools: None) -> None:
    reward, before = resolve("./pools.py:hangs", {}, where="x"), set(_sleeping())
    with pytest.raises(RewardTimeout):
        call_within(lambda: reward(completions=["two"]), 1.0)
    left = set(_sleeping()) - before
    assert [one for one in left if "resource_tracker" not in " ".join(one.cmdline())] == []
    assert not [one for one in multiprocessing.active_children() if not one.daemon and one.is_alive()]


@pytest.mark.whole
def test_a_pool_ends_with_the_isolated_worker_that_is_killed(pools: None) -> None:
    with contextlib.closing(Isolated("./pools.py:hangs", {}, timeout_s=8.0)) as reward:
        (answer,) = reward(completions=["two"])
        assert isinstance(answer, RewardTimeout)
        started = [int(pid) for pid in Path("pids").read_text().split()]
        assert started
        time.sleep(0.5)
        assert [pid for pid in started if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"] == []
