"""Two real ranks, of which one never comes back from a reward: it is named, and the run is over."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import read_status
from tests.support.small_runs import SMALL

REWARD = """
import os, time


def sleepy(completions, trainer_state, **kwargs):
    if trainer_state.global_step == 1 and os.environ["RANK"] == "1":
        time.sleep(600)
    return [float(len(completion)) for completion in completions]
"""


@pytest.mark.processes
@pytest.mark.fault(24)
def test_the_rank_that_hangs_in_a_reward_is_named(workplace: Path) -> None:
    (workplace / "mine.py").write_text(REWARD)
    words = [*SMALL, "run.name=two", "launch.processes=2", "trainer.args.per_device_train_batch_size=4"]
    words += ["rewards.mine.fn=./mine.py:sleepy", "launch.hang_timeout_s=10", "trainer.args.save_steps=1"]
    command = [sys.executable, "-m", "rlhf_cli", "train", *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 1
    assert "error: rank 1 failed: no sign of life for " in ended.stderr
    assert ", in reward 'mine'" in ended.stderr
    assert "mine.py:7 in sleepy" in ended.stderr
    assert "last good checkpoint: checkpoint-1, " in ended.stderr
    status = read_status(RunFolder(workplace / "runs" / "quickstart" / "two"))
    assert (status.state, status.failing_rank, status.step) == ("failed", 1, 1)
