"""Rewards in processes that can be killed: a crash costs a row and not the run."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlhf_cli.errors import RewardFailed
from rlhf_cli.rewards.stack.component import Component, RewardOutcome, RewardTimeout
from rlhf_cli.rewards.stack.isolated import Isolated
from rlhf_cli.rewards.stack.reward_stack import RewardStack

MINE = """
import asyncio, enum, os, sys, time

class Mine(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")

class Grade(enum.IntEnum):
    GOOD = 3

def does(completions, answer=None, plus=0.0, **kwargs):
    (text,) = completions
    if text == "hang":
        time.sleep(3600)
    elif text == "exit":
        sys.exit(4)
    elif text == "_exit":
        os._exit(3)
    elif text == "_exit0":
        os._exit(0)
    elif text == "raise":
        raise ValueError("mine")
    elif text == "own":
        raise Mine("this", "that")
    elif text == "print":
        for _ in range(20):
            print("x" * 100_000)
    elif text == "mutate":
        completions.clear()
        return [1.0]
    elif text == "grade":
        return [Grade.GOOD]
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
"""

Made = Callable[..., Isolated]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    """`made("does", plus=1.0, timeout_s=1)`: the function of that name in a file of the user's."""
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    closing: list[Isolated] = []

    def call(name: str, timeout_s: float | None = 60.0, file: Path = file, **args: Any) -> Isolated:
        closing.append(Isolated(f"{file}:{name}", args, timeout_s=timeout_s))
        return closing[-1]

    yield call
    for isolated in closing:
        isolated.close()


def batch(*completions: str, **columns: list[Any]) -> dict[str, Any]:
    return {"prompts": [f"p{i}" for i in range(len(completions))], "completions": list(completions), **columns}


def told(score: Any) -> Any:
    return f"{type(score).__name__}: {score}" if isinstance(score, BaseException) else score


def test_rows_are_scored_in_other_processes_in_order(made: Made) -> None:
    assert made("does", plus=0.5)(**batch("a", "bb", "ccc", "none")) == [1.5, 2.5, 3.5, None]
    pids = made("where")(**batch("a", "b", "c"))
    assert os.getpid() not in pids
    assert len(pids) == 3


def test_async_functions_and_columns(made: Made) -> None:
    scores = made("later")(**batch("a", "raise", "c", answer=["1", "2", "3"]))
    assert list(map(told, scores)) == [1.0, "ValueError: later", 3.0]


@pytest.mark.fault(34)
def test_a_failing_row_costs_only_that_row(made: Made, capfd: pytest.CaptureFixture[str]) -> None:
    expected = {
        "raise": "ValueError: mine",
        "own": "Mine: this and that",  # its class takes two arguments, and is of no module that exists here
        "exit": "SystemExit: it called sys.exit(4)",
        "_exit": "ProcessEnded: its process ended with code 3",
        "_exit0": "ProcessEnded: its process ended with code 1",
        "mutate": 1.0,
        "print": 5.0,
        "grade": 3.0,
        "tokens": [0.5, None, 1.0],
        "good": 4.0,
    }
    isolated = made("does")
    given = batch(*expected)
    scores = dict(zip(expected, map(told, isolated(**given)), strict=True))
    for text, score in expected.items():
        found = scores[text]
        is_it = str(found).startswith(score) if isinstance(score, str) else found == score
        assert is_it, (text, found)
    assert given == batch(*expected)
    assert isolated(**batch("a", "bb")) == [1.0, 2.0]  # and it goes on
    assert len(capfd.readouterr().out) >= 2_000_000  # negative control: it was printed


class TestHang:
    @pytest.mark.fault(31)
    def test_is_killed_and_counted(self, made: Made) -> None:
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
        while before <= {child.pid for child in psutil.Process().children()} and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not before <= {child.pid for child in psutil.Process().children()}, "no process was killed"


class TestInTheStack:
    def evaluated(self, isolated: Isolated, on_error: Any, *completions: str) -> RewardOutcome:
        stack = RewardStack([Component("mine", isolated, on_error=on_error)])
        try:
            ids = [[1, 2, 3]] * len(completions)
            logs: dict[str, Any] = {"trainer_state": object(), "log_extra": lambda *_: None}
            return stack.evaluate(**batch(*completions, completion_ids=ids), **logs)["mine"]
        finally:
            stack.close()

    def test_each_failure_is_its_rows(self, made: Made) -> None:
        found = self.evaluated(made("does", timeout_s=1.0), -1.0, "a", "hang", "_exit", "exit", "tokens", "none")
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


def test_close_ends_the_processes(made: Made) -> None:
    isolated = made("where")
    before = set(psutil.Process().children(recursive=True))
    isolated(**batch("a", "b"))
    workers = set(psutil.Process().children(recursive=True)) - before
    assert workers  # negative control
    isolated.close()
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert [child for child in alive if "resource_tracker" not in " ".join(child.cmdline())] == []
    isolated.close()  # again: nothing to do
