"""A call that exceeds its deadline is interrupted, also if it holds the interpreter; what late rewards cost."""

from __future__ import annotations

import asyncio
import gc
import re
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rlhf_cli.process import kept
from rlhf_cli.rewards.stack import calling
from rlhf_cli.rewards.stack.calling import call_within
from rlhf_cli.rewards.stack.component import RewardTimeout
from tests.support.reward_bench import BATCH, Bench, Rows

# The alarm of a test's own time limit would be among those that are tested here.
pytestmark = pytest.mark.timeout(0)

FOR_EVER_S = 20.0


def matches_for_ever() -> object:
    """`(a+)+$` on 40 a and a b: there are 2^40 ways to split the a's, and each fails at the b."""
    return re.match(r"(a+)+$", "a" * 40 + "b")


def takes(call, timeout_s: float) -> float:
    began = time.monotonic()
    with pytest.raises(RewardTimeout):
        call_within(call, timeout_s)
    return time.monotonic() - began


@pytest.mark.fault(31)
@pytest.mark.parametrize(
    "call",
    [
        matches_for_ever,
        lambda: time.sleep(2 * FOR_EVER_S),
        lambda: threading.Event().wait(2 * FOR_EVER_S),
        lambda: [None for _ in iter(int, 1)],
    ],
    ids=["regex", "sleep", "lock", "loop"],
)
def test_what_never_ends_is_interrupted(call) -> None:
    assert takes(call, 0.1) < FOR_EVER_S
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_what_catches_every_exception_is_told_again() -> None:
    caught = []

    def stubborn() -> None:
        while len(caught) < 2:
            try:
                time.sleep(FOR_EVER_S)
            except BaseException as error:  # it is meant to catch all
                caught.append(error)
        time.sleep(FOR_EVER_S)

    assert takes(stubborn, 0.05) < FOR_EVER_S
    assert len(caught) == 2


def test_negative_control_in_time() -> None:
    assert call_within(lambda: 7, 5.0) == 7
    with pytest.raises(ZeroDivisionError):
        call_within(lambda: 1 / 0, 5.0)
    time.sleep(0.05)  # an alarm that was left would ring now
    assert call_within(lambda: time.sleep(0.05), 0.5) is None


def test_a_signal_that_comes_after_the_call_has_returned_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(number: int, after_s: float, every_s: float) -> Callable[[], None]:
        def rings_once_more() -> None:
            handler = signal.getsignal(number)
            assert callable(handler)
            handler(number, sys._getframe())

        return rings_once_more

    monkeypatch.setattr(calling, "start_timer", late)
    assert call_within(lambda: 7, 5.0) == 7


def with_its_own_alarm(call: Callable[[], object], seconds: float) -> object:
    """math_verify.utils.timeout: a handler that raises (here by 1 / 0), an alarm, and in the end no alarm at all."""
    before = signal.signal(signal.SIGALRM, lambda *_: 1 / 0)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        return call()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def long() -> None:
    time.sleep(FOR_EVER_S)


def of_several_threads() -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(time.sleep, [FOR_EVER_S] * 2))


def joins_a_thread() -> None:
    """As func_timeout runs a function."""
    thread = threading.Thread(target=long, daemon=True)
    thread.start()
    thread.join(FOR_EVER_S)


@pytest.mark.parametrize(
    "call",
    [
        lambda: (with_its_own_alarm(int, 1.0), long()),
        lambda: (signal.alarm(0), signal.signal(signal.SIGALRM, signal.SIG_IGN), long()),
        lambda: with_its_own_alarm(long, FOR_EVER_S),
        of_several_threads,
        joins_a_thread,
    ],
    ids=["alarm that ends", "alarm(0)", "later alarm", "threads", "joined thread"],
)
def test_the_deadline_holds_if_the_call_uses_alarms_or_threads(call: Callable[[], object]) -> None:
    with kept(()):  # as every reward is called
        assert takes(call, 0.2) < FOR_EVER_S / 2
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_the_deadline_does_not_break_the_alarm_of_the_call() -> None:
    with pytest.raises(ZeroDivisionError):
        call_within(lambda: with_its_own_alarm(long, 0.1), FOR_EVER_S)


@pytest.mark.parametrize("timeout_s", [5.0, None])
def test_an_alarm_left_by_a_reward_is_removed(timeout_s: float | None) -> None:
    def leaves_one() -> None:
        signal.signal(signal.SIGALRM, lambda *_: 1 / 0)
        signal.setitimer(signal.ITIMER_REAL, 0.05)

    with kept(()):
        call_within(leaves_one, timeout_s)
    time.sleep(0.1)


def test_a_call_keeps_no_references_after_it_returns() -> None:
    """Not when the garbage collector comes: a step's tensors are among what they hold."""

    def holds() -> weakref.ref[threading.Event]:
        held = threading.Event()
        call_within(lambda: 7, 5.0)
        with pytest.raises(ZeroDivisionError):
            call_within(lambda: 1 / 0, 5.0)
        return weakref.ref(held)

    gc.collect()
    gc.disable()
    try:
        assert holds()() is None
    finally:
        gc.enable()


def test_an_alarm_of_somebody_else_rings_all_the_same() -> None:
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(True))
    try:
        call_within(int, 5.0)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        call_within(lambda: time.sleep(0.2), 5.0)
        time.sleep(0.2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert rung == [True]


def sleeper(seconds: float, *, is_async: bool) -> Callable[..., Any]:
    def here(**_: Any) -> list[float]:
        time.sleep(seconds)
        return [1.0] * 4

    async def later(**_: Any) -> list[float]:
        await asyncio.sleep(seconds)
        return [1.0] * 4

    return later if is_async else here


class TestTimeouts:
    @pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
    @pytest.mark.fault(31)
    def test_a_hang_ends_after_timeout_s(self, bench: Bench, is_async: bool) -> None:
        found = bench(sleeper(0.9, is_async=is_async), on_error=0.25, timeout_s=0.1)
        assert found.fixed == [0.25] * 4
        assert found.errors == ["no answer within 0.1 s"] * 4
        assert (found.timeouts, found.num_errors, found.calls) == (4, 4, 4)
        assert 0.1 <= found.seconds < FOR_EVER_S
        rows = enumerate(zip(BATCH["prompts"], BATCH["completions"], strict=True))
        kept = [{"reward": "mine", "row": row, "prompt": text, "completion": answer} for row, (text, answer) in rows]
        assert bench.recorded == [one | {"error": "no answer within 0.1 s"} for one in kept]
        in_time = bench(sleeper(0.01, is_async=is_async), timeout_s=5.0)  # negative control
        assert (in_time.raw, in_time.timeouts, in_time.num_errors) == ([1.0] * 4, 0, 0)

    def test_an_async_one_that_will_not_be_cancelled(self, bench: Bench) -> None:
        told = []

        async def stubborn(**_: Any) -> list[float]:
            for _ in range(300):  # six seconds
                try:
                    await asyncio.sleep(0.02)
                except asyncio.CancelledError:
                    told.append(True)
            return [1.0] * 4

        started = time.perf_counter()
        assert bench(stubborn, on_error="exclude", timeout_s=0.1).timeouts == 4
        assert time.perf_counter() - started < 4.0
        assert told == [True]

    def test_what_an_async_one_does_before_it_waits_counts(self, bench: Bench) -> None:
        def starts_slowly(**_: Any) -> Any:
            time.sleep(0.3)
            return sleeper(0.5, is_async=True)()

        assert bench(starts_slowly, on_error=0.0, timeout_s=0.6).timeouts == 4

    @pytest.mark.fault(31)
    def test_an_async_one_that_blocks_the_loop(self, bench: Bench) -> None:
        """A wait without `await`: no task of the loop could end it, and the next batch must not wait behind it."""
        let_go, loops = threading.Event(), list[asyncio.AbstractEventLoop]()

        async def blocks(row: Rows, **_: Any) -> list[float]:
            loops.append(asyncio.get_running_loop())
            if len(loops) == 1:
                let_go.wait(1.8)  # a second after its time it is given up
            return [1.0] * len(row)

        stack = bench.stack(blocks, on_error="exclude", timeout_s=0.1)
        found = stack.evaluate(**BATCH)["mine"]
        assert found.timeouts == 4
        assert "event loop" in str(found.errors[0])
        assert stack.evaluate(**BATCH)["mine"].raw == [1.0] * 4
        let_go.set()
        until = time.monotonic() + FOR_EVER_S
        while not loops[0].is_closed() and time.monotonic() < until:
            time.sleep(0.01)
        assert [loop.is_closed() for loop in loops] == [True, False]
