"""Pools of processes in a reward: they work, isolated or not, and end with a call that was out of time."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from rlhf_cli.rewards.stack.calling import call_within
from rlhf_cli.rewards.stack.component import RewardTimeout
from rlhf_cli.rewards.stack.isolated import Isolated
from rlhf_cli.rewards.stack.reward_functions import resolve

Write = Callable[[str, str], Path]

MINE = """
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

pytestmark = pytest.mark.timeout(0)  # its alarm would be among those that are tested here


@pytest.fixture(autouse=True)
def mine(write: Write) -> Path:
    return write("mine.py", MINE)


@pytest.mark.parametrize("is_isolated", [True, False], ids=["isolated", "here"])
@pytest.mark.parametrize(
    ("name", "how"),
    [("pool", None), ("pool", "spawn"), ("executor", "spawn"), ("process", None), ("executor", "forkserver")],
)
def test_works(name: str, how: str | None, is_isolated: bool) -> None:
    args = {"how": how} if how else {}
    if not is_isolated:
        assert resolve(f"./mine.py:{name}", args, where="x")(completions=["two"]) == [3.0]
        return
    reward = Isolated(f"./mine.py:{name}", args, timeout_s=60.0)
    try:
        assert reward(completions=["two"]) == [3.0]
    finally:
        reward.close()


def _sleeping() -> list[psutil.Process]:
    time.sleep(0.2)
    return [one for one in psutil.Process().children(recursive=True) if one.status() != psutil.STATUS_ZOMBIE]


def test_ends_with_a_call_that_is_out_of_time() -> None:
    reward, before = resolve("./mine.py:hangs", {}, where="x"), set(_sleeping())
    with pytest.raises(RewardTimeout):
        call_within(lambda: reward(completions=["two"]), 1.0)
    left = set(_sleeping()) - before
    assert [one for one in left if "resource_tracker" not in " ".join(one.cmdline())] == []
    assert not [one for one in multiprocessing.active_children() if not one.daemon and one.is_alive()]


@pytest.mark.whole
def test_ends_with_the_isolated_worker_that_is_killed() -> None:
    reward = Isolated("./mine.py:hangs", {}, timeout_s=8.0)
    try:
        (answer,) = reward(completions=["two"])
        assert isinstance(answer, RewardTimeout)
        started = [int(pid) for pid in Path("pids").read_text().split()]
        assert started
        time.sleep(0.5)
        assert [pid for pid in started if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"] == []
    finally:
        reward.close()
