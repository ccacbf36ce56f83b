"""Processes that only pretend to train, and hang: which of them is blamed, of what, and that the rest is left alone."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_cli.config.schema.run_sections import Launch
from rlhf_cli.errors import RankFailed
from rlhf_cli.launch import elastic
from rlhf_cli.launch.freeze import create_run
from rlhf_cli.launch.stopping import failure_file, raise_end
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.runs.heartbeat import Beat, heartbeats
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import claim, read_status
from tests.launch.test_elastic import planned
from tests.support.small_runs import SMALL
from tests.support.waiting import until

pytestmark = pytest.mark.whole

TIMEOUT_S = 1.0

RANK = """
import os, pathlib, re, sys, threading, time
from rlhf_cli.launch.watchdog import watched
from rlhf_cli.runs.heartbeat import GENERATION, LOSS, REWARDS, TRAINING
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import claim
folder = RunFolder(pathlib.Path(sys.argv[1]))
rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
if world_size == 1:
    claim(folder)

{program}

with watched(folder, float(sys.argv[2]), rank) as heartbeat:
    heartbeat.enter(TRAINING)
    (folder.path / f"here-{{rank}}").touch()
    while not all((folder.path / f"here-{{other}}").exists() for other in range(world_size)):
        time.sleep(0.01)  # all ranks are here before one goes on
    train()
"""
IN_A_REWARD = """
def hangs():
    {hang}


def train():
    with heartbeat.during(REWARDS):
        if rank == world_size - 1:
            time.sleep(0.3 * rank)  # the other has waited for longer by then
            with heartbeat.running("mine"):
                hangs()
        time.sleep(60)  # in TRL it gathers what all ranks have
"""
IN_A_COLLECTIVE = """
exec(compile("def gather(): time.sleep(60)", "/torch/distributed/gather.py", "exec"))


def hangs():
    time.sleep(60)


def train():
    gather() if rank == 0 else hangs()
"""
HOLDS_THE_INTERPRETER = 're.match(r"(a+)+$", "a" * 40 + "b")'


@pytest.fixture
def folder(workplace: Path) -> RunFolder:
    prepared = prepare([*SMALL, "run.name=one", f"launch.hang_timeout_s={TIMEOUT_S}"])
    folder = create_run(prepared.experiment, prepared.composed, files={})
    claim(folder)
    return folder


@pytest.fixture
def alone(folder: RunFolder, workplace: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    def run(program: str) -> subprocess.CompletedProcess[str]:
        script = workplace / "rank.py"
        script.write_text(RANK.format(program=program))
        command = [sys.executable, str(script), str(folder.path), str(TIMEOUT_S)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    return run


def has_told_of_the_reward(ended: subprocess.CompletedProcess[str], folder: RunFolder) -> None:
    assert "error: no progress for " in ended.stderr
    assert re.search(r"rank\.py:\d+ in hangs\n", ended.stderr)
    assert "rewards.mine.timeout_s=60" in ended.stderr
    assert f"run folder: {folder.shown}" in ended.stderr
    status = json.loads(folder.status.read_text())
    assert (status["state"], status["failing_rank"]) == ("failed", 0)
    assert "in reward 'mine'" in status["reason"]
    assert "in hangs" in json.loads(failure_file(folder, 0).read_text())["traceback"]
    assert "in hangs" in folder.log.read_text()


@pytest.mark.fault(24)
def test_one_process_in_a_reward_that_sleeps(alone, folder: RunFolder) -> None:
    ended = alone(IN_A_REWARD.format(hang="time.sleep(60)"))
    assert ended.returncode == 1
    has_told_of_the_reward(ended, folder)


@pytest.mark.fault(31)
def test_one_process_in_which_something_holds_the_interpreter(alone, folder: RunFolder) -> None:
    """No thread runs while `re` matches: a second process reports the hang, with the stack, and kills the first."""
    ended = alone(IN_A_REWARD.format(hang=HOLDS_THE_INTERPRETER))
    assert ended.returncode == -signal.SIGKILL
    has_told_of_the_reward(ended, folder)


STEPS = """
def train():
    gaps, at = [], time.monotonic()
    while len(gaps) < 200:
        time.sleep(0.01)
        heartbeat.enter(TRAINING)
        gaps.append(time.monotonic() - at)
        at += gaps[-1]
    print(max(gaps), heartbeat.stopped_s, *open(f"/proc/{os.getpid()}/task/{os.getpid()}/children"))
"""


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGTSTP])
@pytest.mark.parametrize("stopped_s", [0.6 * TIMEOUT_S, 4 * TIMEOUT_S])
def test_the_time_for_which_a_process_was_stopped_does_not_count(
    alone, folder: RunFolder, number: signal.Signals, stopped_s: float
) -> None:
    """As with `docker pause`: the run continues although the clock has gone on. Its watchers are gone afterwards."""
    go_on(folder, number, for_s=stopped_s)
    ended = alone(STEPS)
    assert (ended.returncode, ended.stderr) == (0, "")
    gap_s, known_s, watching = ended.stdout.split()
    assert float(gap_s) > 0.9 * stopped_s
    assert float(known_s) == pytest.approx(stopped_s, abs=0.7 * TIMEOUT_S), "the time left leaves it out"
    assert not failure_file(folder, 0).exists()
    assert not Path(f"/proc/{watching}").exists()


def test_a_process_that_was_stopped_and_then_hangs_is_still_ended(alone, folder: RunFolder) -> None:
    go_on(folder, signal.SIGSTOP, for_s=3 * TIMEOUT_S)
    ended = alone(f"def train():\n    {HOLDS_THE_INTERPRETER}")
    assert ended.returncode == -signal.SIGKILL
    assert json.loads(folder.status.read_text())["state"] == "failed"


def go_on(
    folder: RunFolder,
    number: signal.Signals,
    *,
    goes_on: Callable[[], bool] = lambda: True,
    for_s: float = 0.0,
    rank: int = 0,
) -> None:
    """Stop a rank that trains by a signal, and let it go on after so long; from a thread."""

    def is_asked(beat: Beat) -> bool:
        return beat.rank == rank and beat.is_watched

    def act() -> None:
        (pid,) = until(lambda: [beat.pid for beat in heartbeats(folder.path).values() if is_asked(beat)])
        time.sleep(0.3)
        os.kill(pid, number)
        time.sleep(for_s)
        until(goes_on)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    threading.Thread(target=act, daemon=True).start()


@pytest.fixture
def two(folder: RunFolder, workplace: Path) -> Callable[[str], None]:
    def run(program: str) -> None:
        plan = planned(RANK.format(program=program), workplace, folder, str(TIMEOUT_S), common="")
        end = elastic.run_ranks(folder, plan, Launch(hang_timeout_s=TIMEOUT_S), store=elastic.listening_store())
        raise_end(folder, end, grace_s=30.0)

    return run


@pytest.mark.fault(24)
@pytest.mark.parametrize(
    ("program", "doing"),
    [(IN_A_REWARD.format(hang="time.sleep(60)"), "reward 'mine'"), (IN_A_COLLECTIVE, "training")],
    ids=["in a reward", "beside a collective"],
)
def test_of_two_the_one_that_hangs_is_blamed_and_not_the_one_that_waits(two, folder, program: str, doing: str) -> None:
    """The one that waits has been silent for longer, so its own clock runs out first."""
    with pytest.raises(RankFailed, match=f"rank 1 failed: .* in {doing}") as caught:
        two(program)
    assert "in hangs" in str(caught.value)
    assert read_status(folder).failing_rank == 1


@pytest.mark.fault(24)
def test_one_that_is_stopped_is_named_by_the_other(two, folder: RunFolder) -> None:
    blamed = failure_file(folder, 1)
    go_on(folder, signal.SIGSTOP, goes_on=blamed.exists, rank=1)  # torch waits 30 s for a stopped process to end
    with pytest.raises(RankFailed, match=r"rank 1 failed: .*: it is stopped, by a signal"):
        two("""
def train():
    for step in range(3000):
        if rank == 0:
            meet_file = folder.path / f"step-{step}"
            while not meet_file.exists():
                time.sleep(0.01)
        else:
            time.sleep(0.01)
            (folder.path / f"step-{step}").touch()
        heartbeat.enter(TRAINING)
""")
