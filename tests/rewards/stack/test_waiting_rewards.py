"""Who may run beside others: whoever waits for most of its time, however busy the machine is."""

from __future__ import annotations

import pytest

from rlhf_cli.rewards.stack.component import Outcome
from rlhf_cli.rewards.stack.concurrency import WaitingRewards


def sync(**_: object) -> list[float]:
    return []


async def asks(**_: object) -> list[float]:
    return []


def judged(*calls: tuple[float, float], score=sync, timeouts: int = 0, asked: int = 1) -> bool:
    """After calls of (seconds waited, seconds computed)."""
    waiting = WaitingRewards()
    for waited_s, busy_s in calls:
        outcome = Outcome.empty(1)
        outcome.seconds, outcome.busy_s = waited_s + busy_s, busy_s
        outcome.calls, outcome.timeouts = asked, timeouts
        waiting.add("mine", outcome)
    return waiting.waits("mine", score)


@pytest.mark.parametrize(
    ("calls", "waits"),
    [
        ([], False),  # nobody knows yet
        ([(0.3, 0.01)], True),  # asks a server
        ([(0.3, 0.05)], True),  # and reads a long answer
        ([(0.08, 0.112)], False),  # computes; so long were waits beside eight others on two cores
        ([(0.0, 0.01), (0.1, 0.01)], True),
        ([(0.0, 0.01), (0.1, 0.01), (0.0, 0.01)], False),  # computes; somebody else had the processor once
        ([(0.004, 0.0)], False),  # too short to gain from a thread
        ([(0.006, 0.0), (0.003, 0.0)], False),  # 4.5 ms a call
    ],
)
def test_a_plain_function(calls: list[tuple[float, float]], waits: bool) -> None:
    assert judged(*calls) is waits


def test_one_that_was_interrupted_stays_where_it_can_be_again() -> None:
    assert not judged((0.3, 0.0), timeouts=1)
    assert not judged((0.3, 0.0), (0.3, 0.0), timeouts=1)


def test_what_computes_elsewhere_waits_until_it_turns_out_to_be_quick() -> None:
    """Nothing is to be interrupted here: how long it took to compute, or that it took too long, is no danger."""
    assert judged(score=asks)
    assert judged((0.3, 0.3), score=asks, timeouts=1)
    assert not judged((0.001, 0.0), score=asks)


def test_a_batch_of_which_nothing_was_asked_tells_nothing() -> None:
    assert judged((0.0, 0.0), score=asks, asked=0)
