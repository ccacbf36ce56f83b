"""The record of what a rank is doing, as another process reads it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlhf_cli.process import boot_id
from rlhf_cli.runs.heartbeat import (
    EVALUATION,
    LOADING,
    LOSS,
    TRAINING,
    Heartbeat,
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
    beat = heartbeats(tmp_path)[3]
    assert (beat.phase, beat.is_watched, beat.seams) == (LOADING, False, 0)
    heartbeat.enter(TRAINING)
    beat = heartbeats(tmp_path)[3]
    assert (beat.phase, beat.is_watched, beat.seams) == (TRAINING, True, 1)


def test_what_is_not_watched_has_no_phase_that_is(heartbeat: Heartbeat) -> None:
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
    assert heartbeat.phases == (TRAINING,)
    assert told == [(TRAINING, LOSS), (TRAINING,)]
    assert heartbeat.read().phase == TRAINING


def test_a_record_that_is_being_written_can_be_read(heartbeat: Heartbeat, tmp_path: Path) -> None:
    (file,) = heartbeat_files(tmp_path)
    with file.open("r+b") as stream:
        stream.seek(stream.read().index(LOADING.encode()))
        stream.write(b"\xff")
    assert heartbeats(tmp_path)[3].phase == "\ufffd" + LOADING[1:]
    with file.open("r+b") as stream:
        stream.seek(stream.read().index((boot_id() or "").encode()))
        stream.write(b"\xff")
    assert heartbeats(tmp_path) == {}  # of another boot


@pytest.mark.parametrize(
    ("phases", "says"),
    [((), ""), ((TRAINING, LOSS), LOSS), ((EVALUATION,), EVALUATION), ((EVALUATION, "x"), "x of an evaluation")],
)
def test_phases_in_words(phases: tuple[str, ...], says: str) -> None:
    assert in_words(phases) == says


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
