"""The processes of a run before they start: ranks, GPUs, ports, commands, the vLLM server; a launcher's own ranks."""

from __future__ import annotations

import importlib.metadata
import json
import os
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from rlhf_cli.errors import ConfigError
from rlhf_cli.plan import launch_plan
from rlhf_cli.plan.checks import machine_checks
from rlhf_cli.plan.devices import answer_of
from rlhf_cli.plan.launch_plan import LaunchPlan, ServerPlan, installed_vllm, plan_launch, plan_server, port_problem
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.plan.rank_group import RankGroup, interface_of, rank_group, starts_ranks, why_not_reached
from rlhf_cli.plan.run_plan import Notice
from tests.support.machines import HaveGpus, have_gpus
from tests.support.planning import subject_of
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
    def test_all_of_a_plan(self, gpus: HaveGpus, monkeypatch: pytest.MonkeyPatch) -> None:
        """The first two of four GPUs train, the others serve. Variables that the user set elsewhere are overridden."""
        gpus(4)
        monkeypatch.setattr(launch_plan, "interface_of", lambda address: f"if-{address}")
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
        plan = planned(*SERVER, "launch.rollout_gpus=2", resume=True)
        shared = {
            **{"CUDA_VISIBLE_DEVICES": "0,1", "OMP_NUM_THREADS": "1", "PYTHONPATH": launch_plan.python_path()},
            **{"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"},
            **{"GLOO_SOCKET_IFNAME": "if-127.0.0.1", "NCCL_SOCKET_IFNAME": "=if-127.0.0.1"},
            **{"RLHF_VLLM_URL": "http://127.0.0.1:0", "RLHF_VLLM_GROUP_PORT": "0", "VLLM_HOST_IP": "127.0.0.1"},
        }

        def wanted(shared: dict[str, str]) -> LaunchPlan:
            argv = (sys.executable, "-m", "rlhf_cli.launch.rank_process", "/runs/a run", "--resume")
            command = f"rlhf resume '{os.path.relpath(RUN)}'"
            ranks: dict[int, str | None] = {0: "0", 1: "1"}
            return LaunchPlan(ranks, argv, 2, 1, shared, plan.server, RUN / "log.txt", command, False, ("0", "1"))

        assert plan == wanted(shared)
        assert plan.own_env(1) == {"RANK": "1", "LOCAL_RANK": "1"}
        elsewhere = planned(*SERVER, "trainer.args.vllm_server_base_url=http://gpu9:8000").shared
        assert not elsewhere.keys() & {"NCCL_SOCKET_IFNAME", "VLLM_HOST_IP", "RLHF_VLLM_URL"}  # it stays reachable
        assert plan.server is not None
        assert (plan.server.gpus, plan.server.log) == (("2", "3"), RUN / "vllm-server.log")
        assert plan.server.env == {"CUDA_VISIBLE_DEVICES": "2,3", "VLLM_SERVER_DEV_MODE": "1"}
        for server_port, group_port in ((0, 0), (81, 91)):
            ports = (server_port, group_port) if server_port else ()
            own = {"RLHF_VLLM_URL": f"http://127.0.0.1:{server_port}", "RLHF_VLLM_GROUP_PORT": str(group_port)}
            argv = tuple(str(server_port) if word == "0" else word for word in plan.server.argv)
            server = replace(plan.server, argv=argv, port=server_port, group_port=group_port)
            made = wanted(shared | own | {"MASTER_PORT": "71"})
            assert plan.at_ports(71, *ports) == replace(made, server=server)
        words = ("trainer.args.vllm_server_port=82", "trainer.args.vllm_group_port=92")
        given = planned(*SERVER, *words, "launch.rollout_gpus=2").at_ports(71, 81, 91).server
        assert given is not None
        assert (given.port, given.group_port, given.argv[given.argv.index("--port") + 1]) == (82, 92, "82")

    def test_one_process_alone_has_no_rank(self, gpus: HaveGpus) -> None:
        """A rank without an address to meet at makes transformers wait for one; the printed command has to run."""
        argv = (sys.executable, "-m", "rlhf_cli.launch.rank_process", "/runs/a run")
        command = f"rlhf resume '{os.path.relpath(RUN)}'"
        gpus(1)
        for words, used in ((("launch=cpu",), ()), ((), ("0",))):
            env = {"CUDA_VISIBLE_DEVICES": "0"} if used else {}
            ranks = {0: next(iter(used), None)}
            assert planned(*words) == LaunchPlan(ranks, argv, 1, 1, env, None, RUN / "log.txt", command, True, used)
            assert planned(*words).own_env(0) == {}

    def test_the_variables_of_accelerates_file(self, gpus: HaveGpus, monkeypatch: pytest.MonkeyPatch) -> None:
        gpus(4)
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        own = {"CUDA_VISIBLE_DEVICES": "5,6,7", "OMP_NUM_THREADS": "4", "ACCELERATE_X": "1"}
        Path("a.yaml").write_text("distributed_type: MULTI_GPU\n")
        words = ("launch.processes=2", "launch.accelerate_config=a.yaml", "launch.device=cuda")
        env = planned(*words, accelerate_env=own).shared
        assert own.items() - env.items() == {("CUDA_VISIBLE_DEVICES", "5,6,7")}
        assert env["CUDA_VISIBLE_DEVICES"] == "5,6"
        assert not planned("launch.processes=1", *words[1:], accelerate_env=own).in_this_process
        monkeypatch.setenv("OMP_NUM_THREADS", "3")
        assert (interface_of("127.0.0.1"), interface_of("192.0.2.1")) == ("lo", None)
        monkeypatch.setattr(launch_plan, "interface_of", lambda address: None)
        plan = planned("launch.processes=2", "launch.device=cpu")
        assert (plan.ranks[1], plan.shared["OMP_NUM_THREADS"]) == (None, "3")
        assert "NCCL_SOCKET_IFNAME" not in plan.shared

    def test_a_strategy_that_shards_has_ranks_even_alone(self, gpus: HaveGpus) -> None:
        """Without LOCAL_RANK accelerate makes no process group, and shards nothing."""
        gpus(1)
        plan = planned("launch=fsdp2")
        assert not plan.in_this_process
        assert plan.own_env(0)["LOCAL_RANK"] == "0"

    def test_several_machines(self) -> None:
        """torchrun starts the ranks of each machine with the words that were typed."""
        plan = planned("launch.processes=2", "launch.device=cpu", "launch.nodes=3")
        assert (plan.world_size, plan.num_nodes, plan.in_this_process) == (6, 3, False)
        assert not planned("launch.device=cpu", "launch.nodes=2").in_this_process
        options = "--nnodes=3 --nproc-per-node=2 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 --no-python"
        assert launch_plan.torchrun_command(plan, ["train", "seed=a b"]) == f"torchrun {options} rlhf train 'seed=a b'"
        assert [launch_plan.log_name(node) for node in range(3)] == ["log.txt", "log-machine2.txt", "log-machine3.txt"]

    def test_a_child_imports_what_this_process_imports(self, monkeypatch: pytest.MonkeyPatch) -> None:
        standard = sysconfig.get_path("stdlib")
        own = ["/own", "/own", "/own/x.zip", "", standard, f"{standard}/lib-dynload", "/own/below"]
        monkeypatch.setattr(sys, "path", own)
        assert launch_plan.python_path() == "/own:/own/below"

    def test_the_command_is_what_a_shell_runs(self) -> None:
        """The printed line, run by a shell, puts the variables and the arguments where they belong."""
        program = "import os, sys; print(os.environ['PLACE'], sys.argv[1:])"
        line = launch_plan.as_shell({"PLACE": "a b'c"}, (sys.executable, "-c", program, "x y", "$HOME"))
        done = subprocess.run(line, shell=True, capture_output=True, text=True, check=True)
        assert done.stdout == "a b'c ['x y', '$HOME']\n"


STORE = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
TORCHRUN = STORE | {
    **{"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"},
    **{"TORCHELASTIC_RUN_ID": "none"},
}
SRUN = {
    **{"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"},
    **{"SLURM_JOB_ID": "100007", "SLURM_STEP_ID": "3", "SLURM_STEP_NODELIST": "node[1-2]"},
}


@pytest.mark.parametrize(
    ("variables", "numbers"),
    [
        (TORCHRUN, (5, 8, 1, 4)),
        (STORE | {"RANK": "1", "WORLD_SIZE": "2"}, (1, 2, 0, 1)),  # Kubeflow's PyTorchJob
        (STORE | {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, (1, 2, 1, 2)),  # two shells on one machine
        (STORE | SRUN, (3, 4, 1, 2)),
        (STORE | SRUN | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}, (1, 2, 1, 2)),
        (SRUN | TORCHRUN, (5, 8, 1, 4)),  # torchrun started by srun
        *(
            (no_launcher, None)
            for no_launcher in ({}, STORE, SRUN | {"SLURM_STEP_NUM_TASKS": "1"}, {"PET_NNODES": "2"})
        ),
    ],
)
def test_complete_variables(variables: dict[str, str], numbers: Any) -> None:
    by_torchrun = "TORCHELASTIC_RUN_ID" in variables
    assert rank_group(variables) == (numbers and RankGroup(*numbers, "10.0.0.1", 29500, by_torchrun))


@pytest.mark.parametrize("variables", [{}, STORE, STORE | {"LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "none"}])
def test_a_single_rank_needs_no_address(variables: dict[str, str]) -> None:
    """It may be an earlier launcher's, at which torch would wait for ever."""
    group = rank_group({"RANK": "0", "WORLD_SIZE": "1", **variables})
    assert group == RankGroup(0, 1, 0, 1, "127.0.0.1", 0, "TORCHELASTIC_RUN_ID" in variables)
    told = group.variables()
    assert (told["MASTER_ADDR"], told["MASTER_PORT"]) == ("127.0.0.1", "0")
    assert told["TORCHELASTIC_USE_AGENT_STORE"] == "False"


def test_what_a_rank_tells_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packets to a host on this machine leave from 127.0.0.1, which is on lo; an unknown host has no route."""
    group = RankGroup(5, 8, 1, 4, "localhost", 29500, False)
    told = {
        **{"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1"},
        **{"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"},
    }
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert (group.nodes, group.variables()) == (2, told | {"GLOO_SOCKET_IFNAME": "lo"})
    assert replace(group, host="no host").variables() == told | {"MASTER_ADDR": "no host"}
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert group.variables()["GLOO_SOCKET_IFNAME"] == "ib0"


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "0"},
        {"WORLD_SIZE": "2"},
        STORE | {"LOCAL_RANK": "0"},  # accelerate would wait for the others
        {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1"},
        STORE | {"RANK": "2", "WORLD_SIZE": "2"},
        STORE | {"RANK": "0", "WORLD_SIZE": "two"},
        STORE | {"RANK": "0", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"},
        STORE | {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"},
    ],
)
def test_half_a_set_of_variables_is_refused(variables: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        rank_group(variables)
    error = caught.value
    order = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    got = ", ".join(f"{name}={variables[name]}" for name in order if name in variables)
    assert (error.where, error.got) == ("environment", got)
    assert str(error.expected).startswith("RANK below WORLD_SIZE")
    assert "`unset RANK WORLD_SIZE LOCAL_RANK`" in str(error.advice)


def test_tasks_of_srun_meet_on_the_first_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The port: 7 x 100007 + 3 = 35 x 20000 + 52."""
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="no MASTER_ADDR"):
        rank_group(SRUN)
    answer_of.cache_clear()
    monkeypatch.undo()
    stand_in(tmp_path / "slurm", monkeypatch).says("scontrol", "node1\nnode2\n")
    groups = [rank_group(SRUN | {"SLURM_PROCID": rank}) for rank in ("0", "3")]
    assert {(group.host, group.port) for group in groups if group} == {("node1", 20_052)}


def test_torchrun_s_options_start_ranks_unless_torchrun_did() -> None:
    for options in ({"PET_NNODES": "2"}, {"PET_NPROC_PER_NODE": "4"}):
        assert (starts_ranks(options), starts_ranks(options | TORCHRUN)) == (True, False)
    assert not starts_ranks({})


def test_why_a_port_is_not_reached() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        assert why_not_reached("127.0.0.1", port) == "Connection refused"
        server.listen()
        assert why_not_reached("127.0.0.1", port) is None


def test_a_launcher_s_rank_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan of rank 5 of 8: the command itself trains, with the launcher's numbers."""
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    experiment = prepare(["exp=quickstart", "launch=cpu", "launch.processes=4", "launch.nodes=2"]).experiment
    plan = plan_launch(experiment, Path("/runs/a"))
    assert (plan.in_this_process, plan.group, plan.argv[-1]) == (True, rank_group(), "/runs/a")
    assert ([*plan.ranks], plan.world_size) == ([5], 8)
    assert {name: plan.shared[name] for name in TORCHRUN if name in plan.shared} == {
        name: value for name, value in TORCHRUN.items() if name != "TORCHELASTIC_RUN_ID"
    }
    assert plan.shared["GROUP_RANK"] == "1"


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


OWN = (*SERVER, "launch.rollout_gpus=1")


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """`installed("0.29.1")`: the version of vLLM; None for none."""
    real = importlib.metadata.version

    def version(named: str | None) -> None:
        def of(package: str) -> str:
            if package == "vllm" and named is None:
                raise importlib.metadata.PackageNotFoundError
            return str(named) if package == "vllm" else real(package)

        monkeypatch.setattr(importlib.metadata, "version", of)

    version("0.29.1")
    return version


def server(*words: str) -> ServerPlan:
    return plan_server(prepare(["exp=quickstart", *words]).experiment, Path("/runs/a"), ("3", "5"))


def test_the_command_is_that_of_trl(installed: Callable[[str | None], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL's own `build_command` (trl vllm-serve) is the yardstick: what it imposes, and what names model, GPUs and
    port, stands in ours; in vLLM 0.30 also the scale-out endpoints.
    """
    from trl.scripts import vllm_serve

    for version, has_scale_out in (("0.29.9", False), ("0.30.0", True), (None, True)):
        installed(version)
        monkeypatch.setattr(vllm_serve, "is_vllm_available", lambda min_version, has=has_scale_out: has)
        asked = vllm_serve.ScriptArguments(
            model="org/model", host="127.0.0.1", port=8123, tensor_parallel_size=2, gpu_memory_utilization=0.3
        )
        theirs = vllm_serve.build_command(asked)
        ours = list(server(*OWN, "trainer.args.vllm_server_port=8123").argv)
        assert ours[: ours.index("org/model") + 1] == theirs[: theirs.index("org/model") + 1]
        imposed = theirs[theirs.index("--uvicorn-log-level") + 2 :]
        assert ours[-len(imposed) :] == imposed
        for option in ("--host", "--port", "--tensor-parallel-size"):
            assert ours[ours.index(option) + 1] == theirs[theirs.index(option) + 1]


def test_all_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_plan, "compute_capabilities", lambda: (8.0,))
    given = "enforce_eager: true, async_scheduling: false, max_num_seqs: 32, seed: null, middleware: [a, b]"
    made = server(
        *(*OWN, "model.revision=v2", "model.tokenizer=org/tokens", "model.trust_remote_code=true"),
        *("trainer.args.vllm_max_model_length=99", "trainer.args.vllm_gpu_memory_utilization=0.4"),
        *("trainer.args.vllm_model_impl=transformers", "trainer.args.vllm_group_port=92"),
        f"launch.vllm.args={{{given}, compilation_config: {{mode: 0}}}}",
    )
    ours = (
        "-m vllm.entrypoints.cli.main serve org/model --host 127.0.0.1 --port 0 --tensor-parallel-size 2 --revision v2"
        " --tokenizer org/tokens --max-model-len 99 --gpu-memory-utilization 0.4 --model-impl transformers"
        " --dtype bfloat16 --trust-remote-code --enforce-eager --no-async-scheduling --max-num-seqs 32"
        " --middleware a b --compilation-config {'mode':0} --weight-transfer-config {'backend':'nccl'}"
        " --logprobs-mode processed_logprobs --max-logprobs -1"
    )
    argv = (
        sys.executable,
        *(word.replace("'", '"').replace(":", ": ") if "{" in word else word for word in ours.split()),
    )
    env = {"CUDA_VISIBLE_DEVICES": "3,5", "VLLM_SERVER_DEV_MODE": "1"}
    assert made == ServerPlan(argv, env, ("3", "5"), 0, 92, Path("/runs/a/vllm-server.log"))
    assert "MODEL" in server("launch.rollout=vllm_server", "launch.rollout_gpus=1").argv  # it is refused elsewhere
    assert "--trust-remote-code" not in server(*OWN).argv


@pytest.mark.parametrize(
    ("words", "capabilities", "dtype"),
    [
        (["launch.precision=float32"], (9.0,), "auto"),  # on the hub, and not in its cache
        (["launch.precision=float32", "model.path=there"], (9.0,), "auto"),
        (["launch.precision=float32", "model.path=float16"], (9.0,), "float16"),
        (["launch.precision=float32", "model.path=bfloat16"], (9.0,), "bfloat16"),
        (["launch.precision=float32", "model.path=images"], (9.0,), "bfloat16"),
        (["launch.precision=float32", "model.path=none"], (9.0,), "float32"),
        (["launch.precision=float32", "model.path=org/cached"], (9.0,), "float16"),
        (["launch.precision=float32", "model.dtype=bfloat16"], (9.0,), "bfloat16"),
        (["launch.precision=fp16"], (9.0,), "float16"),
        (["launch.precision=bf16", "model.dtype=float32"], (9.0,), "bfloat16"),
        ([], (8.0,), "bfloat16"),
        (["model.path=float16"], (9.0, 7.5), "float16"),  # a T4, which emulates bf16: precision is float32
        (["model.path=float16"], (), "float16"),
    ],
)
def test_it_computes_in_the_type_of_the_run(
    monkeypatch: pytest.MonkeyPatch, place: Path, words: list[str], capabilities: tuple[float, ...], dtype: str
) -> None:
    stored: dict[str, object] = {"float16": {"dtype": "float16"}, "bfloat16": {"torch_dtype": "bfloat16"}, "none": {}}
    stored["images"] = {"text_config": {"dtype": "bfloat16"}}
    for name, config in stored.items():
        (place / name).mkdir()
        (place / name / "config.json").write_text(json.dumps(config))
    (place / "there").mkdir()
    cached = {"org/cached": place / "float16"}
    monkeypatch.setattr(launch_plan, "cached_model", lambda name, revision: cached.get(name))
    monkeypatch.setattr(launch_plan, "compute_capabilities", lambda: capabilities)
    asks = any(word.startswith("launch.precision") for word in words)
    for others, expected in ((Path("/nowhere"), dtype), (Path("/"), dtype if asks else "bfloat16")):
        monkeypatch.setattr(launch_plan, "OTHER_GPUS", others)
        argv = server(*OWN, *words).argv
        assert argv[argv.index("--dtype") + 1] == expected


Facts = tuple[str, str, object, str]


def problems(*words: str) -> list[Facts]:
    """Class, place, what was given, and what to do, of each error."""
    found = [*machine_checks.vllm_problems(subject_of("exp=quickstart", *words))]
    assert all(error.expected for error in found)
    return [(type(error).__name__, str(error.where), error.got, str(error.hint or error.advice)) for error in found]


def typed(key: str) -> str:
    return f"{key} (command line)"


@pytest.mark.parametrize(
    ("version", "number"),
    [("0.27.9", (0, 27)), ("0.28.0", (0, 28)), ("0.30.1+cu130", (0, 30)), ("0.31.0", (0, 31)), ("dev", (0, 0))],
)
def test_versions(installed: Callable[[str | None], None], version: str, number: tuple[int, int]) -> None:
    install = "pip install 'vllm>=0.28,<0.31'"
    installed(version)
    assert installed_vllm() == number
    fits = number in ((0, 28), (0, 30))
    assert problems(*OWN) == ([] if fits else [("ConfigError", typed("launch.rollout"), f"vllm {version}", install)])
    installed(None)
    wanted = ("ConfigError", typed("launch.rollout"), "launch.rollout=vllm_server", f"{install}, or launch.rollout=hf")
    assert problems(*OWN) == [wanted]


def test_models_that_are_not_served(place: Path) -> None:
    hint = "model.path=FOLDER, or launch.rollout=hf"
    ((name, where, got, to_do),) = problems("launch.rollout=vllm")
    assert (name, where.partition(" ")[0], got, to_do) == ("ModelError", "model.build", "model.build", hint)
    (place / "adapter").mkdir()
    (place / "adapter" / "adapter_config.json").write_text("{}")
    adapter = (*SERVER[::2], "model.path=adapter")
    assert problems(*adapter, "launch.rollout_gpus=1") == [("ModelError", typed("model.path"), "adapter", hint)]
    assert problems("model=local", "model.path=adapter", "launch.rollout=vllm") == []


def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert port_problem(port := taken.getsockname()[1]) == "Address already in use"
    assert port_problem(99999) == "a port is a number up to 65535"
    assert port_problem(port) is port_problem(0) is None


@pytest.mark.parametrize(
    ("name", "value", "host", "port"),
    [
        ("host", "gpu9", "gpu9", 8000),
        ("host", "gpu9 trainer.args.vllm_server_port=81", "gpu9", 81),
        ("base_url", "gpu9:8001", "gpu9", 8001),
        ("base_url", "http://gpu9/v1", "gpu9", 80),
        ("base_url", "https://gpu9/v1", "gpu9", 443),
    ],
)
def test_a_server_elsewhere(monkeypatch: pytest.MonkeyPatch, name: str, value: str, host: str, port: int) -> None:
    key = f"trainer.args.vllm_server_{name}"
    words = (*SERVER, *f"{key}={value}".split())
    unreached: dict[tuple[str, int], str] = {}
    monkeypatch.setattr(machine_checks, "why_not_reached", lambda *address: unreached.get(address))
    monkeypatch.setattr(machine_checks, "_served_model", lambda url: "/their/MODEL")
    assert problems(*words) == []
    unreached[host, port] = "Connection refused"
    ((kind, where, got, advice),) = problems(*words)
    assert (kind, where, got) == ("ConfigError", typed(key), f"{host}:{port}: Connection refused")
    assert "launch.rollout_gpus=1" in advice
    assert [found[1].partition(" ")[0] for found in problems(*words[2:])] == ["model.build"]  # check asks no server


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"data": [{"id": "a", "root": "/x/model"}]}, ""),
        ({"data": [{"root": "org/b"}]}, "serves org/b"),
        ({"data": [{"root": None}]}, "not say"),
    ],
)
def test_the_model_of_a_server_elsewhere(monkeypatch: pytest.MonkeyPatch, answer: object, says: str) -> None:
    monkeypatch.setattr(machine_checks, "why_not_reached", lambda *_: None)
    asked = list[str]()
    monkeypatch.setattr("httpx2.get", lambda url, **_: (asked.append(url), httpx2.Response(200, json=answer))[1])
    words = ("exp=quickstart", *SERVER, "trainer.args.vllm_server_base_url=http://gpu9:81/")
    found = [notice.text for notice in machine_checks.vllm_problems(subject_of(*words)) if isinstance(notice, Notice)]
    assert asked == ["http://gpu9:81/v1/models"]
    assert [says in text for text in found] == [True] * bool(says)


@pytest.mark.parametrize("url", ["gpu9:abc", "http://127.0.0.1:99999", "'http://[::1'", "'http://gpu..9'"])
def test_an_address_that_is_none(url: str) -> None:
    key = "trainer.args.vllm_server_base_url"
    ((kind, where, _, _),) = problems(*SERVER, f"{key}={url}")
    assert (kind, where) == ("ConfigError", typed(key))
    assert all(why_not_reached(*address) for address in (("127.0.0.1", 99999), ("gpu..9", 80)))
