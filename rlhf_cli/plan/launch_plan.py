"""Plan a run's processes on this machine, without torch: `rlhf train --dry-run` shows them, the launcher starts them.

A rank is `python -m rlhf_cli.launch.rank_process RUN`. torch.distributed's variables in its environment tell it about
the other ranks. Every rank sees the GPUs of all training ranks and uses the one at its LOCAL_RANK, as in accelerate.
Under torchrun and other launchers the command itself is a rank (plan/rank_group.py), and starts none.

The command of a vLLM server is that of `trl vllm-serve` in TRL 1.16 (trl/scripts/vllm_serve.py, `build_command`), which
is deprecated. Development mode and the NCCL engine allow weight updates. Log-probabilities are those after temperature
and top-k/top-p, for any number of tokens.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.models.tokenizer_files import dtype_of, read_json
from rlhf_cli.plan.devices import FIRST_WITH_BF16, OTHER_GPUS, compute_capabilities, count_processes, visible_gpus
from rlhf_cli.plan.rank_group import GLOO, LOOPBACK, NO_PORT, PORTS, RankGroup, interface_of, rank_group
from rlhf_cli.runs.provenance import version_of
from rlhf_cli.services.hub_lookup import cached_model

WORKER = "rlhf_cli.launch.rank_process"
LEAST_VLLM, BELOW_VLLM = (0, 28), (0, 31)  # bounds of the versions that fit torch 2.13 and TRL 1.16 and were tested

INSTALL_VLLM = "pip install 'vllm>=0.28,<0.31'"
_SCALE_OUT_FROM = (0, 30)
URL_VARIABLE, GROUP_PORT_VARIABLE = "RLHF_VLLM_URL", "RLHF_VLLM_GROUP_PORT"
"""Set in the environment of the ranks: where the run's vLLM server is."""


@dataclass(frozen=True)
class ServerPlan:
    """The vLLM server that a run starts itself, and that writes to `log`. `port`, also in `argv`, and `group_port` (for
    weight updates) are 0 if they are chosen at the start.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    gpus: tuple[str, ...]
    port: int
    group_port: int
    log: Path

    @property
    def url(self) -> str:
        """Return the URL of the server."""
        return f"http://{LOOPBACK}:{self.port}"

    def for_ranks(self) -> dict[str, str]:
        """Return the variables by which the ranks find the server."""
        return {URL_VARIABLE: self.url, GROUP_PORT_VARIABLE: str(self.group_port)}


def plan_server(experiment: Experiment, run: Path, gpus: tuple[str, ...]) -> ServerPlan:
    """Plan the server of the run in folder `run` on `gpus`. A port that `trainer.args` does not name is 0."""
    args, model = experiment.trainer.args, experiment.model
    given, group = args.get("vllm_server_port"), args.get("vllm_group_port")
    port, group_port = (number if isinstance(number, int) else 0 for number in (given, group))
    argv = [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model.path or "MODEL"),
        *("--host", LOOPBACK, "--port", str(port), "--tensor-parallel-size", str(len(gpus))),
    ]
    for option, value in (
        ("--revision", model.revision),
        ("--tokenizer", model.tokenizer),
        ("--max-model-len", args.get("vllm_max_model_length")),
        ("--gpu-memory-utilization", args.get("vllm_gpu_memory_utilization")),
        ("--model-impl", args.get("vllm_model_impl")),
        ("--dtype", _dtype(experiment)),
    ):
        argv += [] if value is None else [option, str(value)]
    argv += ["--trust-remote-code"] if model.trust_remote_code else []
    for name, value in experiment.launch.vllm.args.items():
        option = name.lstrip("-").replace("_", "-")
        if isinstance(value, bool):
            argv.append(f"--{option}" if value else f"--no-{option}")
        elif value is not None:
            words = value if isinstance(value, list) else [json.dumps(value) if isinstance(value, dict) else value]
            argv += [f"--{option}", *map(str, words)]
    argv += ["--enable-scale-out"] if (installed_vllm() or BELOW_VLLM) >= _SCALE_OUT_FROM else []
    argv += ["--weight-transfer-config", json.dumps({"backend": "nccl"})]
    argv += ["--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1"]
    env = {"CUDA_VISIBLE_DEVICES": ",".join(gpus), "VLLM_SERVER_DEV_MODE": "1"}
    return ServerPlan(tuple(argv), env, gpus, port, group_port, run / "vllm-server.log")


def _dtype(experiment: Experiment) -> str:
    """Return the type in which the trainer computes; for float32, that of its weights: vLLM would take 16 bits."""
    precision, model = experiment.launch.precision, experiment.model
    if precision == "auto":  # trl_config.precision_args decides it with torch
        least = min(compute_capabilities(), default=0.0)
        precision = "bf16" if least >= FIRST_WITH_BF16 or OTHER_GPUS.exists() else "float32"
    if precision != "float32":
        return {"bf16": "bfloat16", "fp16": "float16"}[precision]
    if model.dtype != "auto":
        return model.dtype
    place = Path(os.path.expanduser(str(model.path)))
    folder = place if place.is_dir() else cached_model(str(model.path), model.revision)
    if folder is None or not (folder / "config.json").is_file():
        return "auto"  # of a model on the hub it is the stored type, unless that is float32
    return dtype_of(read_json(folder / "config.json")) or "float32"


def port_problem(port: int) -> str | None:
    """Return why the server cannot listen at a port, or None if it can, or if the port is still to be chosen."""
    if port not in PORTS:
        return NO_PORT
    try:
        if port:
            socket.create_server((LOOPBACK, port)).close()
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)
    return None


def installed_vllm() -> tuple[int, int] | None:
    """Return (major, minor) of the installed vLLM, or None if it is not installed."""
    if (version := version_of("vllm")) is None:
        return None
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


@dataclass(frozen=True)
class LaunchPlan:
    """The processes of a run on this machine. All machines together have `world_size` ranks, which write to `log`.

    `ranks` maps a rank here to its GPU (its id in nvidia-smi or CUDA_VISIBLE_DEVICES; None on a CPU); `argv` starts it,
    with the variables `shared` by all ranks. `in_this_process`: the only rank here is the command itself, so it starts
    none. `group` is set if a launcher started it as one rank of several. `gpus` are those used for training.
    """

    ranks: dict[int, str | None]
    argv: tuple[str, ...]
    world_size: int
    num_nodes: int
    shared: dict[str, str]
    server: ServerPlan | None
    log: Path
    resume_command: str
    in_this_process: bool
    gpus: tuple[str, ...] = ()
    group: RankGroup | None = None

    def own_env(self, rank: int) -> dict[str, str]:
        """Return the variables of one rank, beside the shared ones."""
        return {} if self.in_this_process else {"RANK": str(rank), "LOCAL_RANK": str(rank)}

    def at_ports(self, master_port: int, server_port: int = 0, group_port: int = 0) -> LaunchPlan:
        """Return the plan with every port 0 replaced by the given port."""
        server = self.server
        if server is not None:
            port, group = server.port or server_port, server.group_port or group_port
            argv = list(server.argv)
            argv[argv.index("--port") + 1] = str(port)
            server = replace(server, argv=tuple(argv), port=port, group_port=group)
        own = {"MASTER_PORT": str(master_port)} | (server.for_ranks() if server else {})
        return replace(self, shared=self.shared | own, server=server)


def plan_launch(
    experiment: Experiment, run: Path, *, resume: bool = False, accelerate_env: Mapping[str, str] | None = None
) -> LaunchPlan:
    """Plan the ranks of the run in folder `run` on this machine, and its vLLM server if it starts its own: the first
    GPUs train, the last serve (plan/checks/machine_checks.py checks that there are enough). `accelerate_env` holds the
    variables that accelerate makes of its file. Raise ConfigError if the variables of a launcher are incomplete.
    """
    launch, group = experiment.launch, rank_group()
    own = dict(accelerate_env or {})
    seen = tuple(own["CUDA_VISIBLE_DEVICES"].split(",")) if "CUDA_VISIBLE_DEVICES" in own else visible_gpus()
    gpus = () if launch.device == "cpu" else seen
    local = count_processes(launch)
    training = gpus[:local]
    server = None
    if launch.rollout == "vllm_server" and launch.rollout_gpus:
        server = plan_server(experiment, run, gpus[local : local + launch.rollout_gpus])
    is_alone = local == 1 and launch.nodes == 1 and launch.strategy == "ddp"
    in_this_process = is_alone and launch.accelerate_config is None and server is None
    shared = {"CUDA_VISIBLE_DEVICES": ",".join(training)} if training else {}
    if group is not None:
        in_this_process, shared = True, own | group.variables()
    elif not in_this_process:
        threads = os.environ.get("OMP_NUM_THREADS", own.get("OMP_NUM_THREADS", "1"))
        shared = {**own, "OMP_NUM_THREADS": threads, **shared, **(server.for_ranks() if server else {})}
        shared |= {"PYTHONPATH": python_path(), "WORLD_SIZE": str(local), "LOCAL_WORLD_SIZE": str(local)}
        shared |= {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": "0"}
        if (name := interface_of(LOOPBACK)) is not None:
            shared[GLOO] = name
            if launch.rollout != "vllm_server" or launch.rollout_gpus:
                shared |= {"NCCL_SOCKET_IFNAME": f"={name}", "VLLM_HOST_IP": LOOPBACK}
    places = range(local) if group is None else (group.local_rank,)
    first = 0 if group is None else group.rank - group.local_rank
    return LaunchPlan(
        ranks={first + place: training[place] if place < len(training) else None for place in places},
        argv=(sys.executable, "-m", WORKER, str(run), *(["--resume"] if resume else [])),
        world_size=local * launch.nodes if group is None else group.world_size,
        num_nodes=launch.nodes,
        shared=shared,
        server=server,
        log=run / log_name(0),
        resume_command=f"rlhf resume {shlex.quote(os.path.relpath(run))}",
        in_this_process=in_this_process,
        gpus=training,
        group=group,
    )


def torchrun_command(plan: LaunchPlan, words: list[str]) -> str:
    """Return what to type on each machine of a run on several: torchrun, around `rlhf` with these words."""
    size = (f"--nnodes={plan.num_nodes}", f"--nproc-per-node={len(plan.ranks)}")
    place = ("--rdzv-backend=c10d", "--rdzv-endpoint=HOST:29500")
    return shlex.join(["torchrun", *size, *place, "--no-python", "rlhf", *words])


def log_name(node: int) -> str:
    """Return the name of a machine's log. Each has its own: appending to one file over a network loses lines."""
    return "log.txt" if node == 0 else f"log-machine{node + 1}.txt"


def python_path() -> str:
    """Return the PYTHONPATH by which a child imports what this process does, without Python's standard folders: in a
    checkout, the package is on sys.path only because of the working folder.
    """
    standard = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    entries = [entry for entry in dict.fromkeys(sys.path) if entry and not entry.endswith(".zip")]
    return os.pathsep.join(entry for entry in entries if standard.isdisjoint({entry, str(Path(entry).parent)}))


def as_shell(env: Mapping[str, str], argv: tuple[str, ...] = ()) -> str:
    """Return a shell command line that sets the variables and runs the command."""
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in env.items()), *map(shlex.quote, argv)])
