"""The processes of a run before they start: ranks, GPUs, ports, commands, the vLLM server; a launcher's own ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_cli.errors import ConfigError
from rlhf_cli.plan import rollout_server_plan
from rlhf_cli.plan.devices import visible_gpus
from rlhf_cli.plan.launch_plan import LaunchPlan, as_shell, plan_launch, torchrun_command
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.plan.rank_group import interface_of, rank_group, starts_ranks
from tests.support.machines import HaveGpus, have_gpus
from tests.support.stand_in_slurm import stand_in

RUN = Path("/runs/a run")
MODEL = ("model=local", "model.path=org/model")
SERVER = (*MODEL, "launch.rollout=vllm_server")


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HaveGpus:
    return have_gpus(tmp_path, monkeypatch)


def planned(*words: str, resume: bool = False, accelerate_env: dict[str, str] | None = None) -> LaunchPlan:
    experiment = prepare(["exp=quickstart", *words]).experiment
    return plan_launch(experiment, RUN, resume=resume, accelerate_env=accelerate_env)


class TestRanks:
    def test_one_machine_s_ranks_stay_on_loopback(self, gpus: HaveGpus, monkeypatch: pytest.MonkeyPatch) -> None:
        """Variables that the user set for other runs are overridden. An external vLLM server stays reachable."""
        gpus(3)
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
        own = planned("launch.rollout=vllm_server", "launch.rollout_gpus=1").ranks[0].env
        names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "VLLM_HOST_IP")
        assert [own.get(name) for name in names] == ["lo", "=lo", "127.0.0.1"]
        url = "trainer.args.vllm_server_base_url=http://gpu9:8000"
        foreign = planned("launch.rollout=vllm_server", url).ranks[0].env
        assert [foreign.get(name) for name in names] == ["lo", None, None]

    def test_the_gpus_that_are_visible(self, gpus: HaveGpus, monkeypatch: pytest.MonkeyPatch) -> None:
        """CUDA counts those of CUDA_VISIBLE_DEVICES, in their order, up to the first that does not exist."""
        gpus(4)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
        plan = planned()
        assert plan.gpus == ("3", "1")
        assert plan.ranks[0].env["CUDA_VISIBLE_DEVICES"] == "3,1"
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,7,1")
        assert visible_gpus() == ("3",)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8f,-1,0")
        assert visible_gpus() == ("GPU-8f",)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        assert visible_gpus() == ()

    def test_one_process_alone_has_no_rank(self) -> None:
        """A rank without an address to meet at makes transformers wait for one; the printed command has to run."""
        plan = planned("launch=cpu")
        assert plan.in_this_process
        assert plan.ranks[0].env == {}

    def test_a_strategy_that_shards_has_ranks_even_alone(self, gpus: HaveGpus) -> None:
        """Without LOCAL_RANK accelerate makes no process group, and shards nothing."""
        gpus(1)
        plan = planned("launch=fsdp2")
        assert not plan.in_this_process
        assert plan.ranks[0].env["LOCAL_RANK"] == "0"

    def test_several_machines(self) -> None:
        """torchrun starts the ranks of each machine with the words that were typed."""
        plan = planned("launch.processes=2", "launch.device=cpu", "launch.nodes=3")
        assert (plan.world_size, plan.num_nodes, plan.in_this_process) == (6, 3, False)
        words = torchrun_command(plan, ["train", "+exp=quickstart"]).split()
        assert words[:3] == ["torchrun", "--nnodes=3", "--nproc-per-node=2"]
        assert words[-4:] == ["--no-python", "rlhf", "train", "+exp=quickstart"]

    def test_the_command_is_what_a_shell_runs(self) -> None:
        """The printed line, run by a shell, puts the variables and the arguments where they belong."""
        program = "import os, sys; print(os.environ['PLACE'], sys.argv[1:])"
        line = as_shell({"PLACE": "a b'c"}, (sys.executable, "-c", program, "x y", "$HOME"))
        done = subprocess.run(line, shell=True, capture_output=True, text=True, check=True)
        assert done.stdout == "a b'c ['x y', '$HOME']\n"


class TestServer:
    def test_the_last_gpus_serve(self, gpus: HaveGpus) -> None:
        gpus(4)
        plan = planned(*SERVER, "launch.rollout_gpus=1", "trainer.args.per_device_train_batch_size=64")
        assert plan.gpus == ("0", "1", "2")
        assert plan.server is not None
        assert plan.server.gpus == ("3",)
        assert plan.server.env == {"CUDA_VISIBLE_DEVICES": "3", "VLLM_SERVER_DEV_MODE": "1"}
        assert plan.ranks[0].env["CUDA_VISIBLE_DEVICES"] == "0,1,2"
        assert not plan.in_this_process

    def test_the_command_is_that_of_trl(self, gpus: HaveGpus, monkeypatch: pytest.MonkeyPatch) -> None:
        """TRL's own `build_command` (trl vllm-serve) is the yardstick: what it imposes, and what names model, GPUs and
        port, stands in ours; in vLLM 0.30 also the scale-out endpoints.
        """
        from trl.scripts import vllm_serve

        gpus(2)
        for version, has_scale_out in (((0, 29), False), ((0, 30), True)):
            monkeypatch.setattr(rollout_server_plan, "installed_vllm", lambda version=version: version)
            monkeypatch.setattr(vllm_serve, "is_vllm_available", lambda min_version, has=has_scale_out: has)
            plan = planned(*SERVER, "launch.rollout_gpus=1").at_ports(1, server_port=8123, group_port=9)
            assert plan.server is not None
            asked = vllm_serve.ScriptArguments(model="org/model", host="127.0.0.1", port=8123)
            theirs = vllm_serve.build_command(asked)
            ours = list(plan.server.argv)
            assert ours[: ours.index("org/model") + 1] == theirs[: theirs.index("org/model") + 1]
            imposed = theirs[theirs.index("--uvicorn-log-level") + 2 :]
            assert ours[-len(imposed) :] == imposed
            for option in ("--host", "--port", "--tensor-parallel-size"):
                assert ours[ours.index(option) + 1] == theirs[theirs.index(option) + 1]

    def test_options_of_vllm_s_own(self, gpus: HaveGpus) -> None:
        gpus(2)
        given = "enforce_eager: true, async_scheduling: false, max_num_seqs: 32, seed: null, middleware: [a, b]"
        words = ("launch.rollout_gpus=1", f"launch.vllm.args={{{given}, compilation_config: {{mode: 0}}}}")
        server = planned(*SERVER, *words).server
        assert server is not None
        ours = ["--enforce-eager", "--no-async-scheduling", "--max-num-seqs", "32", "--middleware", "a", "b"]
        ours += ["--compilation-config", '{"mode": 0}']
        assert list(server.argv[server.argv.index("--enforce-eager") :])[: len(ours)] == ours

    @pytest.mark.parametrize(
        ("words", "capability", "dtype"),
        [
            (["launch.precision=float32"], "9.0", "auto"),  # on the hub, and not in its cache
            (["launch.precision=float32", "model.path=STORED"], "9.0", "float16"),
            (["launch.precision=float32", "model.path=org/cached"], "9.0", "float16"),
            (["launch.precision=float32", "model.dtype=bfloat16"], "9.0", "bfloat16"),
            (["launch.precision=fp16"], "9.0", "float16"),
            (["launch.precision=bf16", "model.dtype=float32"], "9.0", "bfloat16"),
            ([], "8.0", "bfloat16"),
            (["model.path=STORED"], "7.5", "float16"),  # a T4, which emulates bf16: precision is float32
        ],
    )
    def test_it_computes_in_the_type_of_the_run(
        self,
        gpus: HaveGpus,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        words: list[str],
        capability: str,
        dtype: str,
    ) -> None:
        gpus(2)
        (tmp_path / "stored").mkdir()
        (tmp_path / "stored/config.json").write_text('{"dtype": "float16"}')
        cached = {"org/cached": tmp_path / "stored"}
        monkeypatch.setattr(rollout_server_plan, "cached_model", lambda name, revision: cached.get(name))
        words = [word.replace("STORED", str(tmp_path / "stored")) for word in words]
        monkeypatch.setattr(rollout_server_plan, "compute_capabilities", lambda: (float(capability),))
        server = planned(*SERVER, "launch.rollout_gpus=1", *words).server
        assert server is not None
        assert server.argv[server.argv.index("--dtype") + 1] == dtype


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
