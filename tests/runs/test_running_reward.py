"""A process that vanishes leaves the names of the rewards it was running; one that ends leaves nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import read_status
from rlhf_cli.runs.running_reward import RunningReward, markers, rewards_at_the_end, while_running

CRASH = """
import os, pathlib, signal, sys, socket, json
from rlhf_cli.runs.running_reward import RunningReward
folder = pathlib.Path(sys.argv[1])
status = {"state": "running", "pid": os.getpid(), "host": socket.gethostname()}
(folder / "status.json").write_text(json.dumps(status))
running = RunningReward(folder, 1)
with running("fine"):
    pass
with running("first"):
    with running("second"):
        if sys.argv[2] == "inside":
            os.kill(os.getpid(), signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("where", "expected"), [("inside", "first, second"), ("outside", None)])
@pytest.mark.fault(34)
def test_a_killed_process(tmp_path: Path, where: str, expected: str | None) -> None:
    ended = subprocess.run([sys.executable, "-c", CRASH, str(tmp_path), where], check=False)
    assert ended.returncode == -9
    assert rewards_at_the_end(tmp_path) == ({1: expected} if expected else {})
    status = read_status(RunFolder(tmp_path))
    assert status.state == "killed"
    assert str(status.reason).endswith(", while reward 'first, second' ran on rank 1") == (expected is not None)


def test_each_rank_s_reward_is_named(tmp_path: Path) -> None:
    both = [RunningReward(tmp_path, rank) for rank in (0, 1)]
    with both[0]("a"), both[1]("b"):
        assert while_running(tmp_path) == ", while reward 'a' ran on rank 0, while reward 'b' ran on rank 1"
    assert while_running(tmp_path) == ""
    for one in both:
        one.close()
        one.close()
    assert markers(tmp_path) == []
