"""Rewards that wait do so together, and leave nothing behind when one of them fails."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from typing import Any

from rlhf_cli.rewards.stack.component import Component, ScoreGate
from rlhf_cli.rewards.stack.isolated import Isolated
from rlhf_cli.rewards.stack.reward_stack import RewardStack, runs_elsewhere
from tests.support.reward_bench import TWO_ROWS


def waits(seconds: float, *scores: float) -> Any:
    async def reward(**batch: Any) -> list[float]:
        await asyncio.sleep(seconds)
        return list(scores)

    return reward


class TestTogether:
    def test_four_that_wait_take_the_time_of_one(self, stack_of: Any) -> None:
        stack = stack_of(**{name: waits(0.1, 1, 2) for name in "abcd"})
        stack.evaluate(**TWO_ROWS)  # the threads and the loop are made here
        best = min(self._seconds(stack) for _ in range(5))
        assert 0.1 <= best < 0.3  # one after the other they would take 0.4

    def test_more_than_a_pool_has_threads_by_default(self, stack_of: Any) -> None:
        """That is 32 at most. Each of these 33 waits until all of them are there."""
        all_there = asyncio.Barrier(33)

        async def reward(**batch: Any) -> list[float]:
            await asyncio.wait_for(all_there.wait(), 20)
            return [1, 2]

        outcomes = stack_of(**{f"r{number}": reward for number in range(33)}).evaluate(**TWO_ROWS)
        assert [outcome.raw for outcome in outcomes.values()] == [[1, 2]] * 33

    def test_negative_control_a_chain_waits_for_each(self) -> None:
        gates: dict[str, Any] = {"a": (), "b": (ScoreGate("a"),), "c": (ScoreGate("b"),), "d": (ScoreGate("c"),)}
        stack = RewardStack([Component(name, waits(0.02, 1, 2), gates=own) for name, own in gates.items()])
        assert self._seconds(stack) >= 0.08
        stack.close()

    @staticmethod
    def _seconds(stack: RewardStack) -> float:
        started = time.perf_counter()
        stack.evaluate(**TWO_ROWS)
        return time.perf_counter() - started

    def test_one_event_loop_for_all_batches(self, stack_of: Any) -> None:
        loops: list[asyncio.AbstractEventLoop] = []

        async def reward(**batch: Any) -> list[float]:
            loops.append(asyncio.get_running_loop())
            return [1, 2]

        stack = stack_of(one=reward, two=reward)
        stack.evaluate(**TWO_ROWS)
        stack.evaluate(**TWO_ROWS)
        assert len(loops) == 4
        assert len(set(map(id, loops))) == 1
        stack.close()
        assert loops[0].is_closed()


def ends_in(code: str, *, seconds: float = 30) -> subprocess.CompletedProcess[str]:
    """A process of its own: what hangs at its end, or is warned of there, is seen."""
    words = [sys.executable, "-W", "error", "-X", "dev", "-c", code]
    return subprocess.run(words, capture_output=True, text=True, timeout=seconds, check=False)


RAISES_BESIDE_ASYNC = """
import asyncio, sys
from rlhf_cli.rewards.stack.component import Component
from rlhf_cli.rewards.stack.reward_stack import RewardStack, runs_elsewhere

async def slow(**batch):
    try:
        await asyncio.sleep(60)
    finally:
        print("let go", flush=True)
    return [1.0]

def broken(**batch):
    import time
    time.sleep(0.2)
    raise ValueError("mine")

stack = RewardStack([Component("broken", broken), Component("slow", slow)])
try:
    stack.evaluate(prompts=["p"], completions=["c"])
except Exception as error:
    print(error.what, flush=True)
stack.close()
"""


def test_an_error_beside_an_async_reward_cancels_that_reward() -> None:
    """The waiting coroutine is cancelled, not tried again, no warning is given and the process ends."""
    done = ends_in(RAISES_BESIDE_ASYNC)
    assert done.stdout.splitlines() == ["reward 'broken' failed on row 0", "let go"]
    assert (done.returncode, done.stderr) == (0, "")


def test_a_computing_reward_stays_in_the_callers_thread(stack_of: Any) -> None:
    """Only there does a deadline's signal interrupt it; libraries that time themselves with signals work there too."""
    threads: dict[str, threading.Thread] = {}

    def seen_as(name: str) -> Any:
        def reward(completions: list[str], **_: Any) -> list[float]:
            threads[name] = threading.current_thread()
            return [1.0] * len(completions)

        return reward

    class Asks:
        async def __call__(self, completions: list[str], **_: Any) -> list[float]:
            return [2.0] * len(completions)

    stack = stack_of(a=seen_as("a"), b=seen_as("b"), asks=Asks())
    stack.evaluate(**TWO_ROWS)
    assert {*threads.values()} == {threading.current_thread()}
    assert [runs_elsewhere(stack.components[place].score) for place in range(3)] == [False, False, True]
    assert runs_elsewhere(Isolated("mine:own", {}, timeout_s=None))
