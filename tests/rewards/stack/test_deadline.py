"""A call that does not come to an end in its time is interrupted, also where it holds the interpreter."""

from __future__ import annotations

import gc
import re
import signal
import sys
import threading
import time
import weakref

import pytest

from rlhf_cli.rewards.stack.calling import call_within
from rlhf_cli.rewards.stack.component import RewardTimeout

# The alarm of a test's own time limit would be among those that are tested here.
pytestmark = pytest.mark.timeout(0)

FOR_EVER_S = 20.0


def matches_for_ever() -> object:
    """`(a+)+$` on 40 a and a b: 2^40 ways to split the a's, each of which fails at the b."""
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


def test_an_alarm_that_rings_after_the_call_has_returned_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    set_timer = signal.setitimer

    def late(which: int, seconds: float, *rest: float) -> object:
        if seconds == 0.0:  # the timer is about to be stopped, and rings first
            signal.getsignal(signal.SIGALRM)(signal.SIGALRM, sys._getframe())  # type: ignore[operator, misc]
        return set_timer(which, seconds, *rest)

    monkeypatch.setattr(signal, "setitimer", late)
    assert call_within(lambda: 7, 5.0) == 7


def test_what_those_who_called_hold_is_let_go_when_they_return() -> None:
    """Not when the garbage collector comes: a step's tensors are among what they hold."""

    class Held:
        pass

    def holds() -> weakref.ref[Held]:
        held = Held()
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
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        call_within(lambda: time.sleep(0.2), 5.0)
        time.sleep(0.2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert rung == [True]
