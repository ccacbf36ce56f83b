"""Real signals to real runs: to one rank of two, to a terminal that closes, and before the first step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from rlhf_cli.runs.checkpoint_folders import problem_with
from rlhf_cli.runs.heartbeat import heartbeats
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import read_status
from tests.support.listening import listening
from tests.support.small_runs import SMALL
from tests.support.waiting import until

pytestmark = pytest.mark.processes

LONG = ["trainer.args.max_steps=2000", "trainer.args.save_steps=1000", "run.name=long", "guards.no_signal=off"]
TWO = ["launch.processes=2", "trainer.args.per_device_train_batch_size=4"]
_LIMIT_S = 240.0


class Started:
    """A command that trains in `place`, and what became of it."""

    def __init__(self, place: Path, *words: str) -> None:
        command = [sys.executable, "-m", "rlhf_cli", "train", *SMALL, *LONG, *words]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=place, stdout=pipe, stderr=pipe, text=True)
        self.folder = RunFolder(place / "runs" / "quickstart" / "long")

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for it, while the run goes on."""
        until(lambda: self.process.poll() is not None or condition(), _LIMIT_S)
        assert self.process.poll() is None, self.process.communicate()[1]

    def ranks(self) -> list[int]:
        """The processes that train, by their rank; each has a child that watches it and has its command line."""
        wanted = {"rlhf_cli.launch.rank_process", str(self.folder.path)}
        processes = [one.info for one in psutil.process_iter(["pid", "ppid", "cmdline", "environ"])]
        ours = {one["pid"]: one for one in processes if wanted <= {*(one["cmdline"] or ())}}
        ranks = {pid: one["environ"]["RANK"] for pid, one in ours.items() if one["ppid"] not in ours}
        return sorted(ranks, key=lambda pid: int(ranks[pid]))

    def ends_saved(self) -> int:
        """Wait for the end, which is that of a run that was asked to stop; return the step that it saved."""
        said = self.process.communicate(timeout=_LIMIT_S)[1]
        assert self.process.returncode == 75, said
        status = read_status(self.folder)
        assert status.state == "preempted"
        (checkpoint,) = self.folder.checkpoints.iterdir()
        assert problem_with(checkpoint) is None
        assert f"saved step {status.step}; `rlhf resume runs/quickstart/long`" in " ".join(said.split())
        assert checkpoint.name == f"checkpoint-{status.step}"
        return status.step


@pytest.fixture
def started(workplace: Path):
    commands: list[Started] = []

    def start(*words: str) -> Started:
        commands.append(Started(workplace, *words))
        return commands[-1]

    yield start
    for command in commands:
        command.process.kill()
        command.process.wait()


@pytest.mark.fault(17, 18)
def test_one_rank_of_two_is_told_and_both_save(started) -> None:
    run = started(*TWO)
    run.until(lambda: run.folder.status.is_file() and read_status(run.folder).step >= 2)
    ranks = run.ranks()
    assert len(ranks) == 2
    assert listening(run.process.pid) == {"127.0.0.1"}
    os.kill(ranks[1], signal.SIGTERM)
    step = run.ends_saved()
    assert step >= 2
    assert (run.folder.checkpoints / f"checkpoint-{step}" / "rng_state_1.pth").is_file()
    assert run.ranks() == []


@pytest.mark.fault(19)
def test_a_long_evaluation_is_broken_off_on_both_ranks(started) -> None:
    """One of 2,000 batches, by far longer than the grace; the step before it is saved by no one else."""
    rows = ("data.args.num_rows=20000", "data.eval.fraction=0.8", "trainer.args.per_device_eval_batch_size=4")
    run = started(*TWO, *rows, "trainer.args.eval_strategy=steps", "trainer.args.eval_steps=3", "launch.grace_s=15")
    run.until(lambda: any("evaluation" in beat.phase for beat in heartbeats(run.folder.path).values()))
    os.kill(run.ranks()[1], signal.SIGTERM)
    assert run.ends_saved() == 3
    assert "eval_" not in run.folder.metrics.read_text()
