"""Rewards that do not answer in time: what it costs, and that nothing waits for them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.reward_bench import BATCH, Bench, Rows, picky, raises


class TestTimeouts:
    @staticmethod
    def slow(*, is_async: bool, seconds: float = 5.0) -> Callable[..., Any]:
        stop = threading.Event()

        def sync(row: Rows, **_: Any) -> list[float]:
            stop.wait(seconds)
            return [1.0] * len(row)

        async def later(row: Rows, **_: Any) -> list[float]:
            await asyncio.sleep(seconds)
            return [1.0] * len(row)

        return later if is_async else sync

    @pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
    @pytest.mark.fault(31)
    def test_a_hang_ends_after_timeout_s(self, bench: Bench, is_async: bool) -> None:
        started = time.perf_counter()
        found = bench(self.slow(is_async=is_async), on_error=0.25, timeout_s=0.1)
        assert time.perf_counter() - started < 4.0  # it hangs for 5
        assert found.fixed == [0.25] * 4
        assert found.errors == ["no answer within 0.1 s"] * 4
        assert (found.timeouts, found.num_errors, found.calls) == (4, 4, 4)
        assert [kept["row"] for kept in bench.recorded] == [0, 1, 2, 3]

    @pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
    def test_negative_control_in_time(self, bench: Bench, is_async: bool) -> None:
        found = bench(self.slow(is_async=is_async, seconds=0.01), timeout_s=5.0)
        assert (found.raw, found.timeouts, found.num_errors) == ([1.0] * 4, 0, 0)

    def test_an_async_one_that_will_not_be_cancelled(self, bench: Bench) -> None:
        async def stubborn(**_: Any) -> list[float]:
            for _ in range(300):  # six seconds
                try:
                    await asyncio.sleep(0.02)
                except asyncio.CancelledError:
                    continue
            return [1.0] * 4

        started = time.perf_counter()
        assert bench(stubborn, on_error="exclude", timeout_s=0.1).timeouts == 4
        assert time.perf_counter() - started < 4.0

    @pytest.mark.fault(31)
    def test_an_async_one_that_blocks_the_loop(self, bench: Bench) -> None:
        """A wait without `await`: no task of the loop could end it, and the next batch must not wait behind it."""
        is_blocking = [True]

        async def blocks(row: Rows, **_: Any) -> list[float]:
            if is_blocking[0]:
                time.sleep(3.0)
            return [1.0] * len(row)

        stack = bench.stack(blocks, on_error="exclude", timeout_s=0.1)
        started = time.perf_counter()
        found = stack.evaluate(**BATCH)["mine"]
        assert time.perf_counter() - started < 2.5
        assert found.timeouts == 4
        assert "event loop" in str(found.errors[0])
        is_blocking[0] = False
        assert stack.evaluate(**BATCH)["mine"].raw == [1.0] * 4
        assert time.perf_counter() - started < 2.5

    @pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
    def test_a_timeout_of_its_own_is_an_error_of_one_row(self, bench: Bench, is_async: bool) -> None:
        """A judge's client gave up on row 2, long before the reward's own time was over."""
        found = bench(picky(2, raises(TimeoutError("the server")), is_async), on_error="exclude", timeout_s=5.0)
        assert found.raw == [0.0, 10.0, None, 30.0]
        assert (found.errors[2], found.timeouts) == ("TimeoutError: the server", 0)
