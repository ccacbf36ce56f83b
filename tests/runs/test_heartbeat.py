"""The record of what a rank is doing, as another process reads it; whose a moment is, against sums made by hand."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlhf_cli.process import boot_id
from rlhf_cli.runs import heartbeat as phases
from rlhf_cli.runs.heartbeat import (
    LOADING,
    LOSS,
    TRAINING,
    Heartbeat,
    PhaseClock,
    TimeSpent,
    heartbeat_files,
    heartbeats,
    in_words,
    while_running,
)
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import read_status


@pytest.fixture
def heartbeat(tmp_path: Path) -> Heartbeat:
    return Heartbeat(tmp_path, 3)


def test_it_loads_and_is_not_watched_until_it_trains(heartbeat: Heartbeat, tmp_path: Path) -> None:
    """What is not watched has no phase that is."""
    for phase, is_watched, seams in ((LOADING, False, 0), (TRAINING, True, 1)):
        beat = heartbeats(tmp_path)[3]
        assert (beat.phase, beat.is_watched, beat.seams) == (phase, is_watched, seams)
        heartbeat.enter(TRAINING)
    with heartbeat.during("evaluating", is_watched=False):
        with heartbeat.during("saving"):
            assert not heartbeat.read().is_watched
        assert not heartbeat.read().is_watched
    assert heartbeat.read().is_watched


def test_a_beat_is_a_sign_of_life_and_to_say_that_one_waits_is_none(heartbeat: Heartbeat) -> None:
    heartbeat.enter(TRAINING)
    first = heartbeat.read()
    time.sleep(0.01)
    heartbeat.say_waits()
    waiting = heartbeat.read()
    assert (waiting.at, waiting.waits) == (first.at, True)
    heartbeat.beat()
    assert heartbeat.read().at > first.at
    assert heartbeat.read().age_s < waiting.age_s
    heartbeat.enter(TRAINING)
    assert not heartbeat.read().waits


def test_a_part_of_a_phase_is_told_and_ends_with_it_and_the_file_keeps_the_whole(heartbeat: Heartbeat) -> None:
    told: list[tuple[str, ...]] = []
    heartbeat.enter(TRAINING)
    heartbeat.listeners.append(told.append)
    with heartbeat.during(LOSS):
        assert heartbeat.phases == (TRAINING, LOSS)
    assert told == [(TRAINING, LOSS), (TRAINING,)]
    assert (heartbeat.phases, heartbeat.read().phase) == ((TRAINING,), TRAINING)


def test_a_record_that_is_being_written_can_be_read(heartbeat: Heartbeat, tmp_path: Path) -> None:
    (file,) = heartbeat_files(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole.replace(LOADING.encode(), b"\xff" + LOADING[1:].encode()))
    assert heartbeats(tmp_path)[3].phase == "\ufffd" + LOADING[1:]
    boot = (boot_id() or "").encode()
    file.write_bytes(whole.replace(boot, b"\xff" + boot[1:]))
    assert heartbeats(tmp_path) == {}  # of another boot


def test_phases_in_words() -> None:
    whole = phases.EVALUATION
    said = {(): "", (TRAINING, LOSS): LOSS, (whole,): whole, (whole, "x"): "x of an evaluation"}
    assert {entered: in_words(entered) for entered in said} == said


def test_who_ends_as_he_wants_to_leaves_nothing(heartbeat: Heartbeat, tmp_path: Path) -> None:
    heartbeat.close()
    heartbeat.close()
    heartbeat.beat()
    heartbeat.enter(TRAINING)  # a thread that is left behind
    assert heartbeat_files(tmp_path) == []
    (tmp_path / "heartbeat-rankx").write_bytes(bytes(100))  # of a stranger's
    assert heartbeats(tmp_path) == {}


CRASH = """
import os, pathlib, signal, sys, socket, json
from rlhf_cli.runs.heartbeat import Heartbeat
folder = pathlib.Path(sys.argv[1])
status = {"state": "running", "pid": os.getpid(), "host": socket.gethostname()}
(folder / "status.json").write_text(json.dumps(status))
running = Heartbeat(folder, 1).running
with running("fine"):
    pass
with running("first"):
    with running("second"):
        if sys.argv[2] == "inside":
            os.kill(os.getpid(), signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("where", "expected"), [("inside", ["first", "second"]), ("outside", [])])
@pytest.mark.fault(34)
def test_a_killed_process_leaves_the_names_of_its_rewards(tmp_path: Path, where: str, expected: list[str]) -> None:
    ended = subprocess.run([sys.executable, "-c", CRASH, str(tmp_path), where], check=False)
    assert ended.returncode == -9
    assert list(heartbeats(tmp_path)[1].rewards) == expected
    status = read_status(RunFolder(tmp_path))
    assert status.state == "killed"
    assert str(status.reason).endswith(", while reward 'first, second' ran on rank 1") == bool(expected)


def test_each_rank_s_rewards_are_named_while_they_run(tmp_path: Path) -> None:
    both, said = [Heartbeat(tmp_path, rank) for rank in (0, 1)], []
    both[0].reward_listeners.append(said.append)
    with both[0].running("a"), both[1].running("b"):
        assert while_running(tmp_path) == ", while reward 'a' ran on rank 0, while reward 'b' ran on rank 1"
    assert while_running(tmp_path) == ""
    assert said == [["a"], []]


class Hands:
    """The hands of a clock that stands still until the test moves them."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        self.now = 100.0
        self.clock = PhaseClock(lambda: self.now)
        heartbeat.listeners.append(self.clock.hear)

    def move(self, seconds: float) -> None:
        self.now += seconds

    def taken(self) -> dict[str, float]:
        """What the clock says, without phases that took nothing."""
        return {key: seconds for key, seconds in self.clock.taken().items() if seconds}


@pytest.fixture
def hands(heartbeat: Heartbeat) -> Hands:
    hands = Hands(heartbeat)
    heartbeat.enter(TRAINING)
    return hands


def test_a_phase_has_what_no_other_within_it_has(heartbeat: Heartbeat, hands: Hands) -> None:
    """A micro-batch: 1 s in the loop, 2 s of data around 4 s of a rollout, which has 8 s of generation and 16 s of the
    reference in it; 32 s forward, and 64 s that are left of the loss: the backward pass.
    """
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
    assert hands.taken() == {
        **{"rest": 1.0, "data": 2.0, "rollout": 4.0, "generation": 8.0, "reference_logps": 16.0},
        **{"forward": 32.0, "backward": 64.0, "optimizer": 128.0},
    }
    hands.move(5)
    assert hands.taken() == {"rest": 5.0}


def test_rewards_that_run_at_once_share_the_time(heartbeat: Heartbeat, hands: Hands) -> None:
    """a runs alone for 2 s, with b for 6 s (3 s each), then b alone for 1 s; 4 s belong to no reward. Together 13 s."""
    with heartbeat.during(phases.REWARDS):
        for seconds, running in ((4, ["a"]), (2, ["a", "b"]), (6, ["b"]), (1, [])):
            hands.move(seconds)
            hands.clock.run_rewards(running)
    assert hands.taken() == {"scoring": 4.0, "reward/a": 5.0, "reward/b": 4.0}


def test_to_wait_for_others_interrupts_what_was_done(heartbeat: Heartbeat, hands: Hands) -> None:
    with heartbeat.during(phases.REWARDS):
        hands.move(1)
        with hands.clock.waiting(), hands.clock.waiting():  # a collective that is made of another
            hands.move(2)
        hands.move(4)
    assert hands.taken() == {"scoring": 5.0, "waiting": 2.0}


def test_a_device_is_waited_for_before_its_phase_ends(heartbeat: Heartbeat, hands: Hands) -> None:
    """A pass is queued in 1 s and computed in 9 more: all 10 count for the pass, not for the next phase.
    The clock does not wait for work queued while logging: it counts for the next pass.
    """
    queue = list[float]()

    def settle() -> None:
        hands.move(sum(queue))
        queue.clear()

    hands.clock.settle = settle
    with heartbeat.during(phases.LOSS):
        with heartbeat.during(phases.FORWARD):
            hands.move(1)
            queue.append(9)
        hands.move(2)
        queue.append(3)
    with heartbeat.during(phases.LOGGING):
        hands.move(4)
        queue.append(100)
    assert hands.taken() == {"forward": 10.0, "backward": 5.0, "logging": 4.0}


def test_an_event_of_more_seconds_weighs_more() -> None:
    """5 s and 3 s of generation in 40 s: 0.2, not the mean of the shares, 0.3.

    What only some events have took nothing in the others; a damaged event without its seconds adds none.
    """
    first = {"time/elapsed_s": 10.0, "time/share/generation": 0.5, "time/share/rest": 0.5}
    last = {"time/elapsed_s": 30.0, "time/share/generation": 0.1, "time/share/rest": 0.7, "time/share/waiting": 0.2}
    spent = TimeSpent()
    spent.take({"time/elapsed_s": 0.0, "time/share/rest": 1.0})
    assert spent.shares() == {}
    for event in ({"time/share/rest": 0.5}, last, first):
        spent.take(event)
    assert spent.elapsed_s == 40.0
    expected = {"rest": pytest.approx(0.65), "generation": pytest.approx(0.2), "waiting": pytest.approx(0.15)}
    assert list(spent.shares().items()) == list(expected.items())
    assert (spent.seconds["generation"], spent.seconds["saving"]) == (pytest.approx(8.0), 0)
