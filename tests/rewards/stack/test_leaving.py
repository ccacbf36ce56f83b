"""Rewards that would end the process: the run ends with their name, and Ctrl-C stays Ctrl-C."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

from rlhf_cli.errors import RewardFailed
from rlhf_cli.rewards.stack.component import OnError
from tests.support.reward_bench import BATCH, Bench, Rows, picky, raises

WAYS: dict[str, tuple[Callable[[], Any], str]] = {
    "sys.exit(3)": (lambda: sys.exit(3), "sys.exit(3)"),
    "sys.exit()": (raises(SystemExit()), "sys.exit()"),  # wandb makes sys.exit(0) of the call, once it is imported
    "os._exit(4)": (lambda: os._exit(4), "os._exit(4)"),
    "os._exit(0)": (lambda: os._exit(0), "os._exit(0)"),
}


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("rules", [{}, {"on_error": "exclude"}, {"on_error": 0.0, "timeout_s": 5.0}], ids=str)
@pytest.mark.fault(34)
def test_ends_the_run_with_the_reward_s_name(bench: Bench, way: str, is_async: bool, rules: dict[str, Any]) -> None:
    """`on_error` does not apply: it is for rows that fail. Without the guard, `os._exit` ends these tests."""
    do, called = WAYS[way]
    with pytest.raises(RewardFailed) as caught:
        bench(picky(2, do, is_async), **rules)
    error = caught.value
    assert (error.where, error.got, error.exit_code) == ("rewards.mine", called, 1)
    assert bench.recorded == []


def test_a_task_of_an_async_reward_s_own(bench: Bench) -> None:
    """asyncio lets SystemExit end the event loop itself; the loop has to outlive it."""
    leaves = [True]

    async def one(index: int) -> float:
        if index == 2 and leaves[0]:
            raise SystemExit(1)
        return 10.0 * index

    async def reward(row: Rows, **_: Any) -> list[float]:
        return list(await asyncio.gather(*(one(index) for index in row)))

    stack = bench.stack(reward, on_error="exclude")
    with pytest.raises(RewardFailed):
        stack.evaluate(**BATCH)
    leaves[0] = False
    assert stack.evaluate(**BATCH)["mine"].raw == [0.0, 10.0, 20.0, 30.0]


@pytest.mark.parametrize("on_error", ["raise", "exclude"])
def test_ctrl_c_during_a_reward_is_not_a_failure_of_the_reward(bench: Bench, on_error: OnError) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        bench(picky(2, lambda: signal.raise_signal(signal.SIGINT)), on_error=on_error)
    assert signal.getsignal(signal.SIGINT) is before
    assert bench.recorded == []


def _leave_with(code: int) -> None:
    os._exit(code)


def test_a_forked_child_of_a_reward_can_exit(bench: Bench) -> None:
    """multiprocessing itself ends a forked child by os._exit."""

    def reward(row: Rows, **_: Any) -> list[float]:
        child = multiprocessing.get_context("fork").Process(target=_leave_with, args=[7])
        child.start()
        child.join(30)
        return [float(child.exitcode or 0)] * len(row)

    assert bench(reward).raw == [7.0] * 4
