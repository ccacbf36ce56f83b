"""`rlhf train` as a rank that torchrun, a shell or Kubeflow's variables start, on two machines over loopback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlhf_cli.launch.rollout_server import free_ports
from rlhf_cli.plan.rank_group import why_not_reached
from rlhf_cli.process import is_running
from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.provenance import weights_hash
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.runs.run_status import read_status
from tests.support.small_runs import SMALL, starting_model
from tests.support.waiting import until

ROOT = str(Path(__file__).parents[2])
HALF = "trainer.args.per_device_train_batch_size=4"
SLOW = """
import os, pathlib, time

def slow(completions, **kwargs):
    rank = os.environ["RANK"]
    pathlib.Path(f"rank{rank}.pid.new").write_text(f"{os.getpid()} {os.getppid()}")
    pathlib.Path(f"rank{rank}.pid.new").rename(f"rank{rank}.pid")
    time.sleep(0.3)
    if pathlib.Path(f"rank{rank}.fails").exists():
        raise ValueError("it is unhappy")
    return [float(len(completion)) for completion in completions]
"""
SLOWLY = [*SMALL, HALF, "rewards.slow.fn=./mine.py:slow", "rewards.slow.trial=false", "trainer.args.max_steps=100"]

pytestmark = pytest.mark.processes


RLHF = [sys.executable, "-m", "rlhf_cli"]


class Command:
    """A command on one of the machines, in a session of its own; what it prints goes to a file."""

    def __init__(self, words: list[str], variables: Mapping[str, str], file: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": ROOT, "OMP_NUM_THREADS": "1", **variables}
        self._file = file
        with file.open("w") as stream:
            rules: dict[str, Any] = {"stdout": stream, "stderr": subprocess.STDOUT, "start_new_session": True}
            self.process = subprocess.Popen(words, env=environment, **rules)

    def wait(self) -> int:
        return self.process.wait(240)

    @property
    def printed(self) -> str:
        return self._file.read_text()


Start = Callable[..., list[Command]]


@pytest.fixture
def start(workplace: Path) -> Iterator[Start]:
    """`start(launcher, *words)` types `rlhf` with these words on two machines."""
    started: list[Command] = []
    (workplace / "mine.py").write_text(SLOW)

    def both(launcher: str, *words: str, machines: int = 2) -> list[Command]:
        (port,) = free_ports(1)
        ours = [*RLHF, *words]
        for node in range(machines):
            variables, command = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}, ours
            if launcher == "shell":
                variables |= {"RANK": str(node), "LOCAL_RANK": str(node), "WORLD_SIZE": "2"}
            elif launcher == "kubeflow":
                variables = {f"PET_{name}": value for name, value in variables.items()}
                variables |= {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": str(node)}
            else:
                place = [f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-conf=is_host={1 - node}"]
                torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
                command = [*torchrun, "--rdzv-backend=c10d", *place, "--no-python", *ours]
            started.append(Command(command, variables, workplace / f"{len(started)}.txt"))
        return started[-machines:]

    yield both
    for command in started:
        if command.process.poll() is None:
            command.process.kill()
        command.process.wait()


def ranks() -> list[list[int]]:
    """Wait until both ranks train; return the pid of each, and of its parent."""
    files = [Path(f"rank{rank}.pid") for rank in (0, 1)]
    until(lambda: all(file.exists() for file in files), 120)
    return [[int(pid) for pid in file.read_text().split()] for file in files]


def run_named(name: str) -> RunFolder:
    return RunFolder(Path.cwd() / "runs" / "quickstart" / name)


def test_two_torchruns_end_where_two_processes_of_one_machine_do(start: Start) -> None:
    """The weights are equal bit for bit, and one folder was made."""
    commands = start("torchrun", "train", *SMALL, HALF, "run.name=machines")
    assert [command.wait() for command in commands] == [0, 0], [command.printed for command in commands]
    (printed,) = [command.printed for command in commands if "finished after 3 steps" in command.printed]
    assert "processes   2 " in printed
    alone = Command([*RLHF, "train", *SMALL, HALF, "launch.processes=2", "run.name=one"], {}, Path("alone.txt"))
    assert alone.wait() == 0, alone.printed
    machines, one = run_named("machines"), run_named("one")
    assert sorted(folder.name for folder in machines.path.parent.iterdir()) == ["machines", "one"]
    assert read_json(machines.provenance)["world_size"] == 2
    assert (machines.path / "log-machine2.txt").is_file()
    assert weights_hash(machines.model) == weights_hash(one.model)
    assert series(read_metrics(machines.metrics), "reward") == series(read_metrics(one.metrics), "reward")
    assert weights_hash(machines.model) != weights_hash(starting_model(machines))  # negative control: it has learned


@pytest.mark.parametrize(
    ("launcher", "words", "place"),
    [
        ("shell", ["train", *SMALL, "trainer.args.learning_rat=1"], "trainer.args.learning_rat (command line)"),
        ("kubeflow", ["train", "-m", *SMALL, "seed=1,2"], "environment"),
        ("shell", ["train", *SMALL, "launch.processes=3", "launch.nodes=1"], "launch.processes (command line)"),
    ],
)
def test_a_mistake_ends_all_ranks_and_is_printed_once(
    start: Start, launcher: str, words: list[str], place: str
) -> None:
    commands = start(launcher, *words)
    assert [command.wait() for command in commands] == [2, 2]
    printed = "".join(command.printed for command in commands)
    assert printed.count("error: ") == 1
    assert f"where:    {place}" in printed
    assert not Path("runs").exists()


NOWHERE = {"MASTER_ADDR": "10.255.255.1", "MASTER_PORT": "1"}
ONE_MACHINE = NOWHERE | dict.fromkeys(("NNODES", "NPROC_PER_NODE"), "1") | {"NODE_RANK": "0"}
ONE_PROCESS = NOWHERE | {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
PET = {f"PET_{name}": value for name, value in ONE_MACHINE.items()}
LEFT = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True"}


@pytest.mark.parametrize("variables", [ONE_PROCESS, ONE_PROCESS | LEFT, PET])
def test_one_process_trains_though_the_address_is_an_earlier_launcher_s(workplace: Path, variables) -> None:
    command = Command([*RLHF, "train", *SMALL], variables, workplace / "printed.txt")
    try:
        assert command.wait() == 0, command.printed
    finally:
        command.process.kill()


def test_torchrun_of_one_process(workplace: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", "--no-python"]
    assert subprocess.run([*torchrun, *RLHF, "train", *SMALL], check=False).returncode == 0


def test_a_rank_that_the_command_starts_prints_the_json(workplace: Path) -> None:
    words = [*RLHF, "train", *SMALL, "--dry-run", "--json"]
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": ROOT, **PET}, stdout=subprocess.PIPE, check=True)
    assert json.loads(done.stdout)["dry_run"]


def test_a_folder_that_a_machine_does_not_see_ends_all_ranks(start: Start, workplace: Path) -> None:
    """Rank 1 sees another folder at that path, as on a machine without the shared file system."""
    (first,) = start("shell", "train", *SMALL, HALF, "run.name=here", machines=1)
    until(run_named("here").provenance.exists, 120)
    port = psutil.Process(first.process.pid).environ()["MASTER_PORT"]
    until(lambda: why_not_reached("127.0.0.1", int(port)) is None, 120)
    time.sleep(1.0)  # rank 0 has told which folder it has frozen
    run_named("here").config.write_text("launch: {}\n")
    variables = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    second = Command([*RLHF, "train", *SMALL], variables, workplace / "second.txt")
    assert (first.wait(), second.wait()) == (2, 2)
    assert f"where:    {run_named('here').path}" in first.printed
    assert "rank 1 on " in first.printed


def test_a_signal_is_heard_while_the_group_forms(start: Start) -> None:
    """Rank 0 waits for rank 1, which never comes."""
    (command,) = start("shell", "train", *SMALL, HALF, "run.name=waits", machines=1)
    until(lambda: run_named("waits").status.exists(), 120)
    time.sleep(3.0)
    command.process.send_signal(signal.SIGTERM)
    until(lambda: read_status(run_named("waits")).state == "preempted", 120)  # it waits for the others for 900 s
    until(lambda: "stopped" in command.printed, 120)


@pytest.mark.parametrize(("launcher", "agent"), [("shell", False), ("kubeflow", True)])
def test_sigterm_to_a_rank_or_an_agent_saves_and_the_run_can_be_resumed(
    start: Start, launcher: str, agent: bool
) -> None:
    commands = start(launcher, "train", *SLOWLY, "run.name=stopped")
    until(lambda: run_named("stopped").metrics.exists(), 120)
    os.kill(ranks()[1][1 if agent else 0], signal.SIGTERM)
    assert [command.wait() for command in commands] == [75, 75], [command.printed for command in commands]
    status = read_status(run_named("stopped"))
    assert (status.state, status.last_checkpoint) == ("preempted", f"checkpoint-{status.step}")
    if launcher == "kubeflow":
        return
    words = [f"trainer.args.max_steps={status.step + 1}", "--allow", "trainer.args.max_steps"]
    again = start("torchrun", "resume", run_named("stopped").shown, *words)
    assert [command.wait() for command in again] == [0, 0], [command.printed for command in again]
    assert read_status(run_named("stopped")).step == status.step + 1


def test_the_rank_that_fails_is_named_with_its_traceback(start: Start) -> None:
    commands = start("kubeflow", "train", *SLOWLY, "run.name=fails")
    ranks()
    Path("rank1.fails").touch()
    assert [command.wait() for command in commands] == [1, 1]
    assert "ValueError: it is unhappy" in commands[1].printed
    assert "rank 1 " in commands[0].printed
    status = read_status(run_named("fails"))
    assert (status.state, status.failing_rank) == ("failed", 1)
    assert "Connection closed by peer" not in str(status.reason)


def test_no_rank_outlives_an_agent_that_is_killed(start: Start) -> None:
    """The ranks of the other machine notice the lost connection and end, too."""
    commands = start("torchrun", "train", *SLOWLY, "run.name=killed")
    pids = ranks()
    os.kill(pids[1][1], signal.SIGKILL)
    until(lambda: not is_running(pids[1][0]), 20)
    until(lambda: not is_running(pids[0][0]), 120)
    assert commands[0].wait() != 0
    assert read_status(run_named("killed")).state in ("failed", "killed")
