"""What a job does on its nodes, with a stand-in for the run: signals, requeueing, and how the other nodes start."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlhf_cli.config.schema.run_sections import Launch
from rlhf_cli.launch.slurm import RunInJob, torchrun_variables
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import read_status, update_status
from tests.support.stand_in_slurm import StandInSlurm, stand_in
from tests.support.waiting import until

JOB = """
import sys
from pathlib import Path
from rlhf_cli.launch import slurm
slurm.node_command = lambda folder: [sys.executable, {run!r}]
slurm._LEAVE_S = 1.0
slurm.RunInJob(Path({folder!r}))()
"""
"""What submitit does with the pickle, where the run is a program of the test's."""

SAVES = """
import os, signal, sys, time
told = []
{before}
signal.signal(signal.SIGUSR1, lambda number, frame: told.append(number))
signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
open({ready!r}, "w").close()
until = time.monotonic() + 20
while not told and time.monotonic() < until:
    time.sleep(0.01)
time.sleep(0.5)  # what is sent twice would be seen twice
open({seen!r}, "w").write(" ".join(map(str, told)))
sys.exit(75 if told else 3)
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandInSlurm:
    stand = stand_in(tmp_path / "slurm-commands", monkeypatch)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    return stand


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.config.write_text("launch: {}\n")
    update_status(folder, state="queued", job_id="7")
    return folder


@pytest.fixture
def job(folder: RunFolder, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """`job(program)` starts the job, whose run is a Python program; `{ready}` and `{seen}` in it are files."""

    def start(program: str, **named: object) -> subprocess.Popen[str]:
        run = tmp_path / "run.py"
        run.write_text(program.format(ready=str(tmp_path / "ready"), seen=str(tmp_path / "seen"), **named))
        text = JOB.format(run=str(run), folder=str(folder.path))
        pipe = subprocess.PIPE
        return subprocess.Popen([sys.executable, "-c", text], stdout=pipe, stderr=pipe, text=True)

    return start


@pytest.fixture
def job_here(folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGCONT)}
    monkeypatch.setattr("rlhf_cli.launch.slurm._POLL_S", 0.02)

    def run(program: str) -> int:
        (tmp_path / "run.py").write_text(program)
        monkeypatch.setattr("rlhf_cli.launch.slurm.node_command", lambda _: [sys.executable, str(tmp_path / "run.py")])
        try:
            RunInJob(folder.path)()
        except SystemExit as end:
            return int(str(end.code))
        return 0

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


def attempts(folder: RunFolder) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder.path / "slurm" / "attempts.jsonl").read_text().splitlines()]


def test_a_warning_waits_until_the_run_listens_and_comes_once(slurm, folder, job, tmp_path: Path) -> None:
    """A process that does not handle SIGUSR1 dies of it: the run is an interpreter that has just been started."""
    slurm.says("scontrol")
    process = job(SAVES, before=f"open({str(tmp_path / 'ready')!r}, 'w').close(); time.sleep(1.5)")
    until((tmp_path / "ready").exists)  # it runs, and does not listen yet
    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate(timeout=60)
    assert (tmp_path / "seen").read_text() == str(int(signal.SIGUSR1))
    assert process.returncode == 75
    assert "scontrol requeue 7" in slurm.calls
    assert "requeued" in out
    (attempt,) = attempts(folder)
    assert (attempt["exit_code"], attempt["was_warned"], attempt["was_cancelled"]) == (75, True, False)


def test_who_is_cancelled_is_not_put_back(slurm, folder, job, tmp_path: Path) -> None:
    """Slurm sends SIGTERM to every process of the job, so the run gets its own."""
    process = job(SAVES, before="")
    until((tmp_path / "ready").exists)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert process.poll() is None  # it waits for the run to save
    subprocess.run(["pkill", "-TERM", "-P", str(process.pid)], check=True)
    process.communicate(timeout=60)
    assert process.returncode == 75
    assert (tmp_path / "seen").read_text() == str(int(signal.SIGTERM))
    assert not any(call.startswith("scontrol") for call in slurm.calls)


def test_a_run_that_comes_no_further_is_not_put_back_for_ever(slurm, folder, job_here) -> None:
    """A kill has cut the record of an earlier attempt off, which keeps no job from going on."""
    (folder.path / "slurm").mkdir()
    earlier = '{"exit_code": 75, "step_at_start": 0, "step_at_end": 5}\n{"job_id": "7", "step_at_s'
    (folder.path / "slurm" / "attempts.jsonl").write_text(earlier)
    update_status(folder, step=5)
    assert [job_here("raise SystemExit(75)") for _ in range(2)] == [75, 75]
    assert [attempt["exit_code"] for attempt in attempts(folder)] == [75, 75, 75]
    assert slurm.calls.count("scontrol requeue 7") == 1
    assert "too short for a step" in str(read_status(folder).reason)


@pytest.mark.parametrize(("number", "says"), [(9, "out of memory"), (11, "killed by SIGSEGV")])
def test_a_run_that_is_killed_has_failed(slurm, folder, job_here, number: int, says: str) -> None:
    begins = (
        f"import json, os; status = {{**json.load(open({str(folder.status)!r})), 'state': 'running', 'host': 'node'}}"
    )
    dies = f"json.dump(status, open({str(folder.status)!r}, 'w')); os.kill(os.getpid(), {number})"
    assert job_here(f"{begins}; {dies}") == 128 + number
    assert read_status(folder).state == "failed"
    assert says in str(read_status(folder).reason)
    assert slurm.calls == []


def test_after_a_node_that_failed_the_run_is_taken_over(slurm, folder, job_here, tmp_path: Path) -> None:
    """It left `running` behind, by a process of another machine: a person's `rlhf resume` would be refused."""
    update_status(folder, state="running", pid=1, host="node-that-is-gone", step=3)
    seen = tmp_path / "state"
    job_here(f"open({str(seen)!r}, 'w').write(open({str(folder.status)!r}).read())")
    assert json.loads(seen.read_text())["state"] == "preempted"


def test_the_job_waits_until_its_id_is_written(slurm, folder, job, tmp_path: Path) -> None:
    """Who submits writes the id after sbatch has returned; the job may run by then."""
    update_status(folder, job_id=None)
    seen = tmp_path / "started"
    process = job(f"open({str(seen)!r}, 'w').close()")
    time.sleep(1.5)
    assert not seen.exists()
    update_status(folder, job_id="7")
    process.communicate(timeout=60)
    assert seen.exists()


WAITS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(75))
open("meets-at", "w").write(os.environ["PET_RDZV_ENDPOINT"])
time.sleep({seconds})
"""
"""The first node's command while it waits for the others."""


@pytest.fixture
def three_nodes(folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    folder.config.write_text("launch: {nodes: 3, processes: 1}\n")
    monkeypatch.chdir(tmp_path)
    return folder


def test_they_meet_where_slurm_reaches_the_first_node(slurm: StandInSlurm, monkeypatch) -> None:
    """By its name where that leads others to it, by its address where the name is unknown."""
    monkeypatch.setenv("SLURMD_NODENAME", "node1.invalid")
    slurm.says("scontrol", "NodeName=node1 NodeAddr=127.0.0.1 NodeHostName=vm Port=1")
    assert torchrun_variables(Launch(nodes=2))["PET_RDZV_ENDPOINT"].startswith("127.0.0.1:")
    monkeypatch.setenv("SLURMD_NODENAME", "localhost")
    assert torchrun_variables(Launch(nodes=2))["PET_RDZV_ENDPOINT"].startswith("localhost:")


def test_all_nodes_run_the_same_command_with_one_address(slurm, three_nodes, job) -> None:
    process = job(WAITS, seconds=1)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    (call,) = [call for call in slurm.calls if call.startswith("srun ")]
    assert call.startswith("srun --relative=1 --nodes=2 --ntasks=2")
    assert call.endswith(f" {three_nodes.path.parent / 'run.py'}")
    assert Path("meets-at").read_text().rpartition(":")[2].isdecimal()


def test_a_run_whose_others_never_come_has_failed_and_is_not_put_back(slurm, three_nodes, job) -> None:
    slurm.says("srun", error="srun: error: Unable to create step")
    process = job(WAITS, seconds=30)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Unable to create step" in error
    assert read_status(three_nodes).state == "failed"
    assert "srun" in str(read_status(three_nodes).reason)
    assert not any(call.startswith("scontrol requeue") for call in slurm.calls)
    assert [attempt["exit_code"] for attempt in attempts(three_nodes)] == [1]
