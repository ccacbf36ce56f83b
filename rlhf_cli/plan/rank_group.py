"""Read from the environment which rank of a group this process is, and how the group meets.

torchrun and shells set torch's own variables (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), and so does Kubeflow's
PyTorchJob. srun sets variables of Slurm, from which torch's follow. Kubeflow's Trainer sets torchrun's options (PET_*):
there no rank runs yet, and launch/elastic.py starts them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from rlhf_cli.errors import ConfigError
from rlhf_cli.plan.devices import answer_of

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_IN_TORCHRUN = "TORCHELASTIC_RUN_ID"
LOOPBACK = "127.0.0.1"
_CONNECT_TIMEOUT_S = 2.0
PORTS, NO_PORT = range(1 << 16), "a port is a number up to 65535"
_FIRST_PORT, _NUM_PORTS = 20_000, 20_000
_SIGNS = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK", "PET_NNODES", "PET_NPROC_PER_NODE", "SLURM_STEP_NUM_TASKS"})
GLOO = "GLOO_SOCKET_IFNAME"  # the variable that names the only interface gloo listens on
NODE = "GROUP_RANK"  # the variable that tells a rank which machine it is on, counted from 0


@dataclass(frozen=True)
class RankGroup:
    """This process as one of `world_size` ranks, `local_size` of them on each machine. The ranks meet in torch's store
    at `host` and `port`. `is_torchruns` says that torchrun started this process and holds the store; otherwise rank 0
    opens it.
    """

    rank: int
    world_size: int
    local_rank: int
    local_size: int
    host: str
    port: int
    is_torchruns: bool

    @property
    def nodes(self) -> int:
        """Return the number of machines."""
        return self.world_size // self.local_size

    def variables(self) -> dict[str, str]:
        """Return torch's variables of this rank, and the interface on which gloo reaches the others: it would take that
        of the host's own name, on Debian 127.0.1.1, which other machines cannot reach. NCCL chooses one itself.
        """
        found = {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_size),
            NODE: str(self.rank // self.local_size),
            "MASTER_ADDR": self.host,
            "MASTER_PORT": str(self.port),
        }
        if self.world_size == 1:
            found["TORCHELASTIC_USE_AGENT_STORE"] = "False"
        name = os.environ.get(GLOO)
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((self.host, 9))  # sends no packet, and finds the route
            name = name or interface_of(str(probe.getsockname()[0]))
        return found | ({GLOO: name} if name else {})


def has_launcher() -> bool:
    """Return whether the environment has a variable that launchers set."""
    return bool(_SIGNS.intersection(os.environ))


def starts_ranks(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether torchrun's options are in the environment, but no torchrun has started this process."""
    is_asked = "PET_NNODES" in environment or "PET_NPROC_PER_NODE" in environment
    return is_asked and _IN_TORCHRUN not in environment


def rank_group(environment: Mapping[str, str] = os.environ) -> RankGroup | None:
    """Return the group whose rank this process is, or None if no launcher has started it.

    A single rank uses a port of this machine, because the address may be left over from an earlier launcher. Raise
    ConfigError if only some of the variables are set, or if they contradict each other.
    """
    is_srun = "RANK" not in environment and _is_number(environment.get("SLURM_STEP_NUM_TASKS"), least=2)
    values = {**environment, **_from_srun(environment)} if is_srun else dict(environment)
    if not any(values.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")):
        return None
    if values.get("WORLD_SIZE") == "1":
        values |= {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": "0"}
    names = [*_NEEDED, "LOCAL_RANK", "LOCAL_WORLD_SIZE"]
    numbers = [name for name in names if name != "MASTER_ADDR" and name in values]
    missing = [name for name in _NEEDED if not values.get(name)]
    if not missing and all(_is_number(values[name]) for name in numbers):
        rank, world_size = int(values["RANK"]), int(values["WORLD_SIZE"])
        # A launcher that starts one process on each machine need not number the processes of a machine.
        local_rank = int(values.get("LOCAL_RANK", "0"))
        local_size = int(values.get("LOCAL_WORLD_SIZE", world_size if "LOCAL_RANK" in values else 1))
        if rank < world_size and local_rank < local_size and world_size % local_size == 0:
            place = (values["MASTER_ADDR"], int(values["MASTER_PORT"]))
            return RankGroup(rank, world_size, local_rank, local_size, *place, is_torchruns=_IN_TORCHRUN in values)
    wrong = f"are incomplete: no {' and no '.join(missing)}" if missing else "are not numbers, or contradict each other"
    got = ", ".join(f"{name}={values[name]}" for name in names if values.get(name))
    expected = "RANK below WORLD_SIZE, MASTER_ADDR and MASTER_PORT; LOCAL_RANK below LOCAL_WORLD_SIZE; "
    expected += "the same number of ranks on each machine"
    advice = "torchrun sets all of them; `unset RANK WORLD_SIZE LOCAL_RANK` trains without a launcher"
    what = f"the launcher's variables {wrong}"
    raise ConfigError(what, where="environment", got=got, expected=expected, advice=advice)


def _from_srun(environment: Mapping[str, str]) -> dict[str, str]:
    """Return torch's variables for a task of srun's. Tasks meet on the first node, at a port made of the job's id."""
    found = {
        "RANK": environment.get("SLURM_PROCID", ""),
        "WORLD_SIZE": environment["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": environment.get("SLURM_LOCALID", "0"),
    }
    job, step = (int(environment.get(name, "0")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    found["MASTER_PORT"] = environment.get("MASTER_PORT") or str(_FIRST_PORT + (job * 7 + step) % _NUM_PORTS)
    if not (host := environment.get("MASTER_ADDR", "")):
        expand = ("show", "hostnames", environment.get("SLURM_STEP_NODELIST", ""))
        host = answer_of(shutil.which("scontrol") or "scontrol", *expand).partition("\n")[0].strip()
    found["MASTER_ADDR"] = host
    if match := re.fullmatch(r"(\d+)(\(x\d+\))?", environment.get("SLURM_STEP_TASKS_PER_NODE", "")):
        found["LOCAL_WORLD_SIZE"] = match[1]
    return found


def _is_number(text: str | None, *, least: int = 0) -> bool:
    return text is not None and text.isdecimal() and int(text) >= least


def why_not_reached(host: str, port: int) -> str | None:
    """Return why the port does not accept a connection within two seconds, or None if it does."""
    try:
        if port not in PORTS:
            return NO_PORT
        with socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S):
            return None
    except (OSError, UnicodeError) as error:  # UnicodeError: two dots in the name of a host
        return getattr(error, "strerror", None) or str(error) or type(error).__name__


def interface_of(address: str | None) -> str | None:
    """Return the interface that has this IPv4 address, or None if there is none."""
    import psutil

    held = psutil.net_if_addrs().items()
    return next((name for name, addresses in held if any(entry.address == address for entry in addresses)), None)
