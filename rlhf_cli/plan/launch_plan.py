"""Plans a run's processes on a machine, without torch: what `rlhf train --dry-run` shows and the launcher starts.

A rank is `python -m rlhf_cli.launch.worker RUN`; all it knows of the others is in its environment, in the words of
torch.distributed. Every rank sees the GPUs of all that train, and takes the one of its LOCAL_RANK, as accelerate does.
"""

from __future__ import annotations

import os
import shlex
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.launch_section import Launch
from rlhf_cli.plan.devices import count_processes, visible_gpus
from rlhf_cli.plan.network_interface import GLOO, interface_of
from rlhf_cli.plan.rollout_server_plan import ServerPlan, plan_server
from rlhf_cli.tables.strategies import STRATEGIES

WORKER = "rlhf_cli.launch.worker"
_LOOPBACK = "127.0.0.1"
_FIRST_NODE = "FIRST_NODE"
"""Stands for a machine that Slurm will choose."""
NODE = "GROUP_RANK"
"""The variable that tells a rank which machine it is on, counted from 0."""


@dataclass(frozen=True)
class RankPlan:
    """One process that trains. `gpu` is its id as nvidia-smi or CUDA_VISIBLE_DEVICES has it, None on a CPU; `env` is
    what it has beside the environment of the command.
    """

    rank: int
    local_rank: int
    gpu: str | None
    env: dict[str, str]
    argv: tuple[str, ...]


@dataclass(frozen=True)
class LaunchPlan:
    """What is started on one machine. `num_nodes` machines together have `world_size` ranks, of which these are
    `ranks`; `node` counts the machines from 0. `meets_at` is HOST:PORT of the first, None for a machine alone.

    `in_this_process`: the only rank is the command itself, and nothing is started. `log` is what all ranks write to.
    `shared` of a rank's environment is the same for all.
    """

    ranks: tuple[RankPlan, ...]
    world_size: int
    num_nodes: int
    shared: dict[str, str]
    server: ServerPlan | None
    log: Path
    resume_command: str
    in_this_process: bool
    node: int = 0
    meets_at: str | None = None

    @property
    def gpus(self) -> tuple[str, ...]:
        """Return the GPUs that train."""
        return tuple(rank.gpu for rank in self.ranks if rank.gpu is not None)

    def at_ports(self, master_port: int, server_port: int = 0, group_port: int = 0) -> LaunchPlan:
        """Return the plan with the ports that were chosen in place of each 0."""
        server = self.server
        if server is not None:
            port, group = server.port or server_port, server.group_port or group_port
            argv = list(server.argv)
            argv[argv.index("--port") + 1] = str(port)
            server = replace(server, argv=tuple(argv), port=port, group_port=group)
        own = {"MASTER_PORT": str(master_port)} | (server.for_ranks() if server else {})
        return replace(self.having(own), server=server)

    def on_machine(self, node: int) -> LaunchPlan:
        """Return what another machine starts that is like this one, counted from 0."""
        first = node * len(self.ranks)
        ranks = tuple(
            replace(one, rank=first + place, env=one.env | {"RANK": str(first + place), NODE: str(node)})
            for place, one in enumerate(self.ranks)
        )
        log = self.log.with_name(log_name(node))
        return replace(self, ranks=ranks, node=node, shared=self.shared | {NODE: str(node)}, log=log)

    def having(self, variables: Mapping[str, str]) -> LaunchPlan:
        """Return the plan with these variables in every rank's environment."""
        ranks = tuple(replace(rank, env={**rank.env, **variables}) for rank in self.ranks)
        return replace(self, ranks=ranks, shared={**self.shared, **variables})


def plan_launch(
    experiment: Experiment,
    run: Path,
    *,
    resume: bool = False,
    accelerate_env: Mapping[str, str] | None = None,
    node: int = 0,
    meets_at: str | None = None,
) -> LaunchPlan:
    """Plan the ranks of the run in folder `run` on machine `node`, and its vLLM server where it has one of its own.

    `meets_at` is where several machines meet, None for what `launch.rdzv` says.

    `accelerate_env` is what accelerate makes of the file of `launch.accelerate_config`. The first GPUs train, the last
    serve. Whether there are as many as are asked for is judged by plan/launch_problems.py.
    """
    launch = experiment.launch
    own = dict(accelerate_env or {})
    seen = tuple(own["CUDA_VISIBLE_DEVICES"].split(",")) if "CUDA_VISIBLE_DEVICES" in own else visible_gpus()
    gpus = () if launch.device == "cpu" else seen
    local = count_processes(launch.processes, launch.device, rollout_gpus=launch.rollout_gpus)
    training = gpus[:local]
    server = None
    if launch.rollout == "vllm_server" and launch.rollout_gpus:
        server = plan_server(experiment, run, gpus[local : local + launch.rollout_gpus])
    argv = (sys.executable, "-m", WORKER, str(run), *(["--resume"] if resume else []))
    meets_at = meets_at or launch.rdzv
    shared = {
        **own,
        **_threads(own),
        **({"CUDA_VISIBLE_DEVICES": ",".join(training)} if training else {}),
        **(server.for_ranks() if server else {}),
        "PYTHONPATH": python_path(),
        **{"WORLD_SIZE": str(local * launch.nodes), "LOCAL_WORLD_SIZE": str(local)},
        **_where_ranks_meet(launch.nodes, node, meets_at),
        **(_on_loopback(launch) if launch.nodes == 1 else {}),
    }
    ranks = tuple(
        RankPlan(
            node * local + place,
            place,
            training[place] if place < len(training) else None,
            shared | {"RANK": str(node * local + place), "LOCAL_RANK": str(place)},
            argv,
        )
        for place in range(local)
    )
    is_alone = local == 1 and launch.nodes == 1 and not STRATEGIES[launch.strategy].shards
    return LaunchPlan(
        ranks=ranks,
        world_size=local * launch.nodes,
        num_nodes=launch.nodes,
        shared=shared,
        server=server,
        log=run / log_name(node),
        resume_command=f"rlhf resume {shlex.quote(os.path.relpath(run))}",
        in_this_process=is_alone and launch.accelerate_config is None and server is None,
        node=node,
        meets_at=meets_at,
    )


def log_name(node: int) -> str:
    """Return the name of the log of a machine: two that append to one file of a network's file system lose lines."""
    return "log.txt" if node == 0 else f"log-machine{node + 1}.txt"


def _where_ranks_meet(nodes: int, node: int, meets_at: str | None) -> dict[str, str]:
    """Return the variables by which torch's ranks find one another.

    Those of several machines meet in the store that the command on the first machine has opened, as torchrun's do: its
    port is the only one that somebody has to know. GROUP_RANK is torchrun's word for the place of a machine.
    """
    if nodes == 1:
        return {"MASTER_ADDR": _LOOPBACK, "MASTER_PORT": "0"}
    host, _, port = (meets_at or f"{_FIRST_NODE}:0").rpartition(":")
    store = {"MASTER_ADDR": host, "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": "True"}
    return {**store, NODE: str(node)}


def _on_loopback(launch: Launch) -> dict[str, str]:
    """Return the variables that keep ranks which share a machine from listening on its other interfaces.

    They overrule the user's own, which are for runs of several machines. NCCL and vLLM look further where the run talks
    to a vLLM server of somebody else's, which may be on another machine.
    """
    name = interface_of(_LOOPBACK)
    if name is None:
        return {}
    has_foreign_server = launch.rollout == "vllm_server" and not launch.rollout_gpus
    others = {} if has_foreign_server else {"NCCL_SOCKET_IFNAME": f"={name}", "VLLM_HOST_IP": _LOOPBACK}
    return {GLOO: name, **others}


def python_path() -> str:
    """Return where a child finds what this process imports, without what every Python has: a run from a checkout has
    the package on sys.path only because of the folder it was started in.
    """
    own = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}

    def is_own(entry: str) -> bool:
        path = Path(entry)
        return entry in own or str(path.parent) in own or path.suffix == ".zip"

    return os.pathsep.join(dict.fromkeys(entry for entry in sys.path if entry and not is_own(entry)))


def as_shell(env: Mapping[str, str], argv: tuple[str, ...] = ()) -> str:
    """Return a command with its variables as a shell runs it."""
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in env.items()), *map(shlex.quote, argv)])


def _threads(own: Mapping[str, str]) -> dict[str, str]:
    return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", own.get("OMP_NUM_THREADS", "1"))}
