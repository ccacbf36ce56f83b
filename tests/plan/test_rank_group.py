"""Which rank of a group the variables of a launcher make of a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_cli.errors import ConfigError
from rlhf_cli.plan.launch_plan import plan_launch
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.plan.rank_group import interface_of, rank_group, starts_ranks
from tests.support.stand_in_slurm import stand_in

STORE = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
TORCHRUN = STORE | {
    **{"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"},
    **{"TORCHELASTIC_RUN_ID": "none"},
}
SRUN = {
    **{"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"},
    **{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "node[1-2]"},
}


@pytest.mark.parametrize(
    ("variables", "numbers"),
    [
        (TORCHRUN, (5, 8, 1, 4)),
        (STORE | {"RANK": "1", "WORLD_SIZE": "2"}, (1, 2, 0, 1)),  # Kubeflow's PyTorchJob
        (STORE | {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, (1, 2, 1, 2)),  # two shells on one machine
        (STORE | SRUN, (3, 4, 1, 2)),
        (SRUN | TORCHRUN, (5, 8, 1, 4)),  # torchrun started by srun
    ],
)
def test_complete_variables(variables: dict[str, str], numbers: tuple[int, ...]) -> None:
    group = rank_group(variables)
    assert group is not None
    assert (group.rank, group.world_size, group.local_rank, group.local_size) == numbers
    assert (group.host, group.port) == ("10.0.0.1", 29500)
    assert group.is_torchruns == ("TORCHELASTIC_RUN_ID" in variables)


@pytest.mark.parametrize("variables", [{}, STORE, SRUN | {"SLURM_STEP_NUM_TASKS": "1"}, {"PET_NNODES": "2"}])
def test_no_launcher(variables: dict[str, str]) -> None:
    assert rank_group(variables) is None


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "0"},
        {"WORLD_SIZE": "2"},
        {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1"},
        STORE | {"RANK": "2", "WORLD_SIZE": "2"},
        STORE | {"RANK": "0", "WORLD_SIZE": "two"},
        STORE | {"RANK": "0", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"},
    ],
)
def test_half_a_set_of_variables_is_refused(variables: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        rank_group(variables)
    assert caught.value.where == "environment"
    assert all(f"{name}={value}" in str(caught.value.got) for name, value in variables.items() if name != "X")


def test_tasks_of_srun_meet_on_the_first_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path / "slurm", monkeypatch).says("scontrol", "node1\nnode2\n")
    groups = [rank_group(SRUN | {"SLURM_PROCID": rank}) for rank in ("0", "3")]
    assert {(group.host, group.port) for group in groups if group} == {("node1", 20_049)}


def test_torchrun_s_options_start_ranks_unless_torchrun_did() -> None:
    options = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "4"}
    assert starts_ranks(options)
    assert not starts_ranks(options | TORCHRUN)
    assert not starts_ranks(TORCHRUN)


def test_a_launcher_s_rank_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan of rank 5 of 8: the command itself trains, with the launcher's numbers."""
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    experiment = prepare(["exp=quickstart", "launch=cpu", "launch.processes=4", "launch.nodes=2"]).experiment
    plan = plan_launch(experiment, Path("/runs/a"))
    assert plan.in_this_process
    assert ([rank.rank for rank in plan.ranks], plan.world_size) == ([5], 8)
    assert {name: plan.shared[name] for name in TORCHRUN if name in plan.shared} == {
        name: value for name, value in TORCHRUN.items() if name != "TORCHELASTIC_RUN_ID"
    }
    assert plan.shared["GROUP_RANK"] == "1"


def test_gloo_s_interface_is_that_of_the_system_s_own_tool() -> None:
    """Compare with every address of `ip -4 -oneline address`, the first of its interface."""
    try:
        listed = subprocess.run(["ip", "-4", "-oneline", "address"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("there is no `ip` here")
    first: dict[str, str] = {}
    for line in listed.splitlines():
        _, name, _, address, *_ = line.split()
        first.setdefault(name, address.partition("/")[0])
    assert first
    assert {interface_of(address) for address in first.values()} == set(first)


BLOCKED = """
import os, signal, sys, threading, time
from datetime import timedelta
from torch.distributed import TCPStore
from rlhf_cli.process import heard_in_time

def leave(number):
    os._exit(75)

with heard_in_time({signal.SIGTERM: lambda number, frame: sys.exit(3)}, leave):
    store = TCPStore("127.0.0.1", 0, 1, True, timedelta(seconds=60))
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
    if sys.argv[1] == "in torch":
        store.get("never")
    time.sleep(60)
"""


@pytest.mark.parametrize(("where", "code"), [("in torch", 75), ("in Python", 3)])
def test_a_signal_is_heard_while_torch_waits_for_other_ranks(where: str, code: int) -> None:
    command = [sys.executable, "-c", BLOCKED, where]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))}
    assert subprocess.run(command, env=environment, timeout=50, check=False).returncode == code
