"""Find out, without torch, which GPUs this machine has, and how much memory a process of a run will have."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Literal

from rlhf_cli.config.schema.run_sections import Launch

_PROBE_TIMEOUT_S = 20
_UUID = re.compile(r"\(UUID: (.+)\)")
ON_SLURM_NODE = "RLHF_ON_SLURM_NODE"  # set for a training process inside a Slurm job: its devices are the run's
FIRST_WITH_BF16 = 8.0  # the least compute capability of a GPU that computes in bf16
OTHER_GPUS = Path("/dev/kfd")  # exists on machines with AMD GPUs, which nvidia-smi does not count


def count_processes(launch: Launch) -> int:
    """Return the number of training processes here; for `auto`, one per GPU that no vLLM server uses, else one."""
    if launch.processes != "auto":
        return launch.processes
    return 1 if launch.device == "cpu" else max(1, len(visible_gpus()) - launch.rollout_gpus)


def planned_processes(launch: Launch) -> int:
    """Return the number of processes of a run: on these machines, or on the nodes that Slurm allocates."""
    if launch.slurm is None or launch.processes != "auto":
        return launch.nodes * count_processes(launch)
    return launch.nodes * (launch.slurm.gpus_per_node or 1 if launch.device != "cpu" else 1)


def is_left_to_a_node(launch: Launch) -> bool:
    """Return whether the run will compute on another machine: it is a Slurm job that has not started yet."""
    return launch.slurm is not None and ON_SLURM_NODE not in os.environ


def uses_gpu(launch: Launch) -> bool:
    """Return whether a run computes on GPUs: those of this machine, or those requested from Slurm."""
    if launch.device != "auto":
        return launch.device == "cuda"
    return bool(launch.slurm.gpus_per_node) if launch.slurm is not None else bool(visible_gpus())


def visible_gpus() -> tuple[str, ...]:
    """Return the ids of the GPUs that a process started here sees: the entries of CUDA_VISIBLE_DEVICES up to the first
    that does not exist (CUDA ignores the rest), else what nvidia-smi lists: none if it is missing or late.
    """
    visible, there = os.environ.get("CUDA_VISIBLE_DEVICES"), len(_listed())
    if visible is None:
        return tuple(map(str, range(there)))

    def exists(entry: str) -> bool:
        return entry != "-1" and not (there and entry.isdigit() and int(entry) >= there)

    return tuple(takewhile(exists, filter(None, map(str.strip, visible.split(",")))))


def gpu_identity(gpu: str) -> str:
    """Return an id of a GPU that is the same for every process of this machine: its UUID in nvidia-smi, because GPU 0
    of one Slurm job is another GPU in the next. If nvidia-smi lists no such GPU, return `gpu` unchanged.
    """
    listed = _listed()
    if gpu.isdigit() and int(gpu) < len(listed):
        return listed[int(gpu)]
    # CUDA accepts a prefix of a UUID.
    return next((uuid for uuid in listed if gpu.startswith("GPU-") and uuid.startswith(gpu)), gpu)


@cache
def answer_of(*command: str) -> str:
    """Return the output of a command, or '' if it does not start or does not answer in time."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S).stdout
    except (subprocess.TimeoutExpired, OSError):
        return ""


def _nvidia_smi(*options: str) -> list[str]:
    """Return the lines that nvidia-smi answers with; none without it."""
    command = shutil.which("nvidia-smi")
    return answer_of(command, *options).splitlines() if command else []


def _listed() -> tuple[str, ...]:
    """Return the UUID of every GPU that nvidia-smi lists, or its whole line if that has no UUID."""
    lines = [line for line in _nvidia_smi("-L") if line.startswith("GPU ")]
    return tuple(match[1] if (match := _UUID.search(line)) else line for line in lines)


def compute_capabilities() -> tuple[float, ...]:
    """Return each NVIDIA GPU's compute capability (8.0 is an A100); empty without nvidia-smi."""
    lines = map(str.strip, _nvidia_smi("--query-gpu=compute_cap", "--format=csv,noheader"))
    return tuple(float(line) for line in lines if re.fullmatch(r"\d+\.\d+", line))


def runs_on_cpu(launch: Launch) -> bool:
    """Return whether the ranks are known to train on a CPU: without torch, and before a Slurm job has its node."""
    if launch.device != "auto" or is_left_to_a_node(launch):
        return launch.device == "cpu"
    return not visible_gpus() and not OTHER_GPUS.exists()


def num_cores() -> int:
    """Return how many cores this process may use; macOS only knows those of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def host_bytes() -> int:
    """Return the memory of this machine, or the container's limit if that is lower."""
    import psutil

    limits: list[int] = [psutil.virtual_memory().total]
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # no such file, or `max`
            limits.append(int(Path(file).read_text()))
    return min(limits)


def gpu_bytes() -> int | None:
    """Return the memory of the smallest visible NVIDIA GPU according to nvidia-smi, or None without a GPU."""
    lines = _nvidia_smi("--query-gpu=index,memory.total", "--format=csv,noheader,nounits")
    sizes = {found[1]: int(found[2]) * 2**20 for line in lines if (found := re.match(r"(\d+), *(\d+)$", line.strip()))}
    return min([sizes[gpu] for gpu in visible_gpus() if gpu in sizes], default=None)


@dataclass(frozen=True)
class Device:
    """The device of one of the `processes` of a run; `bf16`: it computes matrix products in bfloat16."""

    on_gpu: bool = False
    bf16: bool = False
    processes: int = 1
    num_bytes: int | None = None  # its memory, None if unknown

    @property
    def kind(self) -> Literal["GPU", "CPU"]:
        """Return what it is, as users read it."""
        return "GPU" if self.on_gpu else "CPU"


def planned_device(launch: Launch, processes: int) -> Device:
    """Return the device that each process of a run of `processes` will have."""
    on_gpu, of_host = uses_gpu(launch), host_bytes() // max(1, processes // launch.nodes) or None
    num_bytes = of_host if not on_gpu else gpu_bytes() if launch.slurm is None else None
    bf16 = launch.precision == "bf16" or (on_gpu and launch.precision == "auto")
    return Device(on_gpu, bf16, processes, num_bytes)
