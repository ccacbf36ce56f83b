"""Whose a moment is: seconds of a clock that the test moves, against sums made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_cli.runs import heartbeat as phases
from rlhf_cli.runs.heartbeat import Heartbeat, PhaseClock, TimeSpent


class Hands:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def move(self, seconds: float) -> None:
        self.now += seconds


def taken(clock: PhaseClock) -> dict[str, float]:
    """What the clock says, without phases that took nothing."""
    return {key: seconds for key, seconds in clock.taken().items() if seconds}


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def clock(hands: Hands) -> PhaseClock:
    return PhaseClock(hands)


@pytest.fixture
def heartbeat(tmp_path: Path, clock: PhaseClock) -> Heartbeat:
    heartbeat = Heartbeat(tmp_path, 0)
    heartbeat.listeners.append(clock.hear)
    return heartbeat


def test_a_phase_has_what_no_other_within_it_has(heartbeat: Heartbeat, clock: PhaseClock, hands: Hands) -> None:
    """A micro-batch: 1 s in the loop, 2 s of data around 4 s of a rollout, which has 8 s of generation and 16 s of the
    reference in it; 32 s forward, and 64 s that are left of the loss: the backward pass.
    """
    heartbeat.enter(phases.TRAINING)
    hands.move(1)
    with heartbeat.during(phases.LOSS):
        with heartbeat.during(phases.DATA):
            hands.move(1)
            with heartbeat.during(phases.ROLLOUT):
                hands.move(3)
                with heartbeat.during(phases.GENERATION):
                    hands.move(8)
                with heartbeat.during(phases.REFERENCE_LOGPS):
                    hands.move(16)
                hands.move(1)
            hands.move(1)
        with heartbeat.during(phases.FORWARD):
            hands.move(32)
        hands.move(64)
    heartbeat.enter(phases.OPTIMIZER)
    hands.move(128)
    heartbeat.enter(phases.TRAINING)
    assert taken(clock) == {
        **{"rest": 1.0, "data": 2.0, "rollout": 4.0, "generation": 8.0, "reference_logps": 16.0},
        **{"forward": 32.0, "backward": 64.0, "optimizer": 128.0},
    }
    hands.move(5)
    assert taken(clock) == {"rest": 5.0}


def test_rewards_that_run_at_once_share_the_time(heartbeat: Heartbeat, clock: PhaseClock, hands: Hands) -> None:
    """a runs alone for 2 s, with b for 6 s (3 s each), then b alone for 1 s; 4 s belong to no reward. Together 13 s."""
    heartbeat.enter(phases.TRAINING)
    with heartbeat.during(phases.REWARDS):
        hands.move(4)
        clock.run_rewards(["a"])
        hands.move(2)
        clock.run_rewards(["a", "b"])
        hands.move(6)
        clock.run_rewards(["b"])
        hands.move(1)
        clock.run_rewards([])
    assert taken(clock) == {"scoring": 4.0, "reward/a": 5.0, "reward/b": 4.0}


def test_to_wait_for_others_interrupts_what_was_done(heartbeat: Heartbeat, clock: PhaseClock, hands: Hands) -> None:
    heartbeat.enter(phases.TRAINING)
    with heartbeat.during(phases.REWARDS):
        hands.move(1)
        with clock.waiting(), clock.waiting():  # a collective that is made of another
            hands.move(2)
        hands.move(4)
    assert taken(clock) == {"scoring": 5.0, "waiting": 2.0}


def test_a_device_is_waited_for_before_its_phase_ends(heartbeat: Heartbeat, clock: PhaseClock, hands: Hands) -> None:
    """A pass is queued in 1 s and computed in 9 more: all 10 count for the pass, not for the next phase.
    The clock does not wait for work queued while logging: it counts for the next pass.
    """
    queue = list[float]()

    def settle() -> None:
        hands.move(sum(queue))
        queue.clear()

    clock.settle = settle
    heartbeat.enter(phases.TRAINING)
    with heartbeat.during(phases.LOSS):
        with heartbeat.during(phases.FORWARD):
            hands.move(1)
            queue.append(9)
        hands.move(2)
        queue.append(3)
    with heartbeat.during(phases.LOGGING):
        hands.move(4)
        queue.append(100)
    assert taken(clock) == {"forward": 10.0, "backward": 5.0, "logging": 4.0}


# What log events say together of where the time went, against sums made by hand.


def test_an_event_of_more_seconds_weighs_more() -> None:
    """5 s and 3 s of generation in 40 s: 0.2, not the mean of the shares, 0.3.

    What only some events have took nothing in the others; a damaged event without its seconds adds none.
    """
    first = {"time/elapsed_s": 10.0, "time/share/generation": 0.5, "time/share/rest": 0.5, "time/share/waiting": 0.0}
    last = {"time/elapsed_s": 30.0, "time/share/generation": 0.1, "time/share/rest": 0.7, "time/share/waiting": 0.2}
    spent = TimeSpent()
    for event in ({"time/share/rest": 0.5}, last, {name: first[name] for name in [*first][:3]}):
        spent.take(event)
    assert spent.elapsed_s == 40.0
    expected = {"rest": pytest.approx(0.65), "generation": pytest.approx(0.2), "waiting": pytest.approx(0.15)}
    assert spent.shares() == expected
    assert list(spent.shares()) == list(expected)
    assert (spent.seconds["generation"], spent.seconds["saving"]) == (pytest.approx(8.0), 0)
    assert TimeSpent().shares() == {}
