"""Plan a run's processes on this machine, without torch: `rlhf train --dry-run` shows them, the launcher starts them.

A rank is `python -m rlhf_cli.launch.rank_process RUN`. torch.distributed's variables in its environment tell it about
the other ranks. Every rank sees the GPUs of all training ranks and uses the one at its LOCAL_RANK, as in accelerate.
Under torchrun and other launchers the command itself is a rank (plan/rank_group.py), and starts none.
"""

from __future__ import annotations

import os
import shlex
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.plan.devices import count_processes, visible_gpus
from rlhf_cli.plan.rank_group import GLOO, LOOPBACK, RankGroup, interface_of, rank_group

if TYPE_CHECKING:
    from rlhf_cli.plan.rollout_server_plan import ServerPlan

WORKER = "rlhf_cli.launch.rank_process"


@dataclass(frozen=True)
class LaunchPlan:
    """The processes of a run on this machine. All machines together have `world_size` ranks.

    `ranks` maps a rank here to its GPU (its id in nvidia-smi or CUDA_VISIBLE_DEVICES; None on a CPU); `argv` starts it.
    `in_this_process`: the only rank here is the command itself, so it starts none. `group` is set if a launcher started
    it as one rank of several. All ranks write to `log`. `shared` is the part of the environment that is the same for
    all ranks. `gpus` are those used for training.
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
    """Plan the ranks of the run in folder `run` on this machine, and its vLLM server if it starts its own.

    `accelerate_env` holds the variables that accelerate makes of the file in `launch.accelerate_config`. The first GPUs
    train, the last serve. plan/checks/machine_checks.py checks that there are enough GPUs. Raise ConfigError if the
    variables of a launcher are incomplete.
    """
    launch, group = experiment.launch, rank_group()
    own = dict(accelerate_env or {})
    seen = tuple(own["CUDA_VISIBLE_DEVICES"].split(",")) if "CUDA_VISIBLE_DEVICES" in own else visible_gpus()
    gpus = () if launch.device == "cpu" else seen
    local = count_processes(launch)
    training = gpus[:local]
    server = None
    if launch.rollout == "vllm_server" and launch.rollout_gpus:
        from rlhf_cli.plan.rollout_server_plan import plan_server

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
    """Return the PYTHONPATH a child needs to import what this process imports, without Python's standard folders: in a
    checkout, the package is on sys.path only because of the working folder.
    """
    standard = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    entries = [entry for entry in dict.fromkeys(sys.path) if entry and not entry.endswith(".zip")]
    return os.pathsep.join(entry for entry in entries if standard.isdisjoint({entry, str(Path(entry).parent)}))


def as_shell(env: Mapping[str, str], argv: tuple[str, ...] = ()) -> str:
    """Return a shell command line that sets the variables and runs the command."""
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in env.items()), *map(shlex.quote, argv)])
