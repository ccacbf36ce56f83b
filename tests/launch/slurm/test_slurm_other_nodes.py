"""The other nodes of a job: what srun is told, where they meet, and what becomes of a run whose others never come."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_cli.launch.slurm_node import place_in_job
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import read_status, update_status
from tests.support.stand_in_slurm import StandInSlurm, stand_in

JOB = """
import sys
from pathlib import Path
from rlhf_cli.launch import slurm_node
slurm_node.node_command = lambda folder: [sys.executable, "-c", {run!r}]
slurm_node._LEAVE_S = 1.0
slurm_node.RunInJob(Path({folder!r}))()
"""

WAITS = """
import os, signal, sys, time
from pathlib import Path
def stopped(number, frame):
    sys.exit(75)
signal.signal(signal.SIGTERM, stopped)
Path("meets-at").write_text(os.environ["RLHF_MEETS_AT"])
time.sleep(30)
"""
"""The first node's command while it waits for the others."""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandInSlurm:
    stand = stand_in(tmp_path / "slurm-commands", monkeypatch)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.chdir(tmp_path)
    return stand


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run of three nodes that was queued as job 7."""
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.config.write_text("launch: {nodes: 3}\n")
    update_status(folder, state="queued", job_id="7")
    return folder


def run_job(folder: RunFolder, program: str) -> subprocess.CompletedProcess[str]:
    text = JOB.format(run=program, folder=str(folder.path))
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)


def test_they_meet_where_slurm_reaches_the_first_node(slurm: StandInSlurm, monkeypatch) -> None:
    """By its name where that leads others to it, by its address where the name is unknown."""
    monkeypatch.setenv("SLURMD_NODENAME", "node1.invalid")
    slurm.says("scontrol", "NodeName=node1 NodeAddr=127.0.0.1 NodeHostName=vm Port=1")
    assert place_in_job().host == "127.0.0.1"
    monkeypatch.setenv("SLURMD_NODENAME", "localhost")
    assert place_in_job().host == "localhost"


def test_the_first_is_told_where_and_the_others_join_there(slurm: StandInSlurm, folder: RunFolder) -> None:
    done = run_job(folder, WAITS.replace("time.sleep(30)", "time.sleep(1)"))
    assert done.returncode == 0, done.stderr
    (call,) = [call for call in slurm.calls if call.startswith("srun ")]
    place = Path("meets-at").read_text()
    assert call.startswith("srun --relative=1 --nodes=2 --ntasks=2")
    assert call.endswith(f"-m rlhf_cli join {place}")


def test_a_run_whose_others_never_come_has_failed_and_is_not_put_back(slurm: StandInSlurm, folder: RunFolder) -> None:
    slurm.says("srun", error="srun: error: Unable to create step")
    done = run_job(folder, WAITS)
    assert done.returncode == 1
    assert "Unable to create step" in done.stderr
    status = read_status(folder)
    assert status.state == "failed"
    assert status.reason == "the other nodes did not join: srun ended with code 1, and the job's log says why"
    assert not any(call.startswith("scontrol requeue") for call in slurm.calls)
    (line,) = (folder.path / "slurm" / "attempts.jsonl").read_text().splitlines()
    assert json.loads(line)["exit_code"] == 1
