"""Finds out without torch which GPUs this machine has, and how many processes `auto` means on it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Literal

from rlhf_cli.config.schema.launch_section import Launch

_PROBE_TIMEOUT_S = 20
_UUID = re.compile(r"\(UUID: (.+)\)")
ON_SLURM_NODE = "RLHF_ON_SLURM_NODE"
"""Is in the environment of what trains in a job of Slurm's: there the devices are those that the run will have."""
_NO_NVIDIA = Path("/dev/kfd")
"""Is there where the GPUs are AMD's: nvidia-smi does not count those."""


def count_processes(asked: int | Literal["auto"], device: str, *, rollout_gpus: int = 0) -> int:
    """Return the number of processes that train on this machine: one a GPU that no vLLM server has (`rollout_gpus`),
    or one where there is none or the device is the CPU.

    A number in `asked` is returned as it is.
    """
    if asked != "auto":
        return asked
    return 1 if device == "cpu" else max(1, num_gpus() - rollout_gpus)


def planned_processes(launch: Launch) -> int:
    """Return the number of processes that a run will have: on these machines, or on the nodes that Slurm gives it."""
    if launch.slurm is None:
        here = count_processes(launch.processes, launch.device, rollout_gpus=launch.rollout_gpus)
        return launch.nodes * here
    if launch.processes != "auto":
        return launch.nodes * launch.processes
    return launch.nodes * (max(1, launch.slurm.gpus_per_node or 0) if launch.device != "cpu" else 1)


def is_left_to_a_node(launch: Launch) -> bool:
    """Return whether a run will compute on another machine than this: it is to be a job of Slurm's and is not yet."""
    return launch.slurm is not None and ON_SLURM_NODE not in os.environ


def num_gpus() -> int:
    """Count the visible NVIDIA GPUs."""
    return len(visible_gpus())


def visible_gpus() -> tuple[str, ...]:
    """Return the ids of the GPUs that a process started here sees, as CUDA_VISIBLE_DEVICES names them.

    Those of CUDA_VISIBLE_DEVICES where it is set, as far as they exist: CUDA ignores what comes after the first that
    does not. Else what nvidia-smi lists; none where it is not there or does not answer in time.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return listed_gpus(shutil.which("nvidia-smi"))
    ids = [entry.strip() for entry in visible.split(",") if entry.strip()]
    there = len(listed_gpus(shutil.which("nvidia-smi")))
    seen = []
    for entry in ids:
        if entry == "-1" or (there and entry.isdigit() and int(entry) >= there):
            break
        seen.append(entry)
    return tuple(seen)


@cache
def listed_gpus(nvidia_smi: str | None) -> tuple[str, ...]:
    """Return the number of every GPU that `nvidia_smi` (its path) lists, none for None."""
    return tuple(str(number) for number in range(len(_listed(nvidia_smi))))


def gpu_identity(gpu: str) -> str:
    """Return by what a GPU of CUDA_VISIBLE_DEVICES or nvidia-smi is the same one for every process of this machine.

    That is the UUID that nvidia-smi lists under its number: what is GPU 0 in one job of Slurm's is another in the next.
    Where nothing is listed, it is what it was called.
    """
    listed = _listed(shutil.which("nvidia-smi"))
    if gpu.isdigit() and int(gpu) < len(listed):
        return listed[int(gpu)]
    # CUDA takes the beginning of a UUID for the whole.
    return next((uuid for uuid in listed if gpu.startswith("GPU-") and uuid.startswith(gpu)), gpu)


@cache
def _listed(nvidia_smi: str | None) -> tuple[str, ...]:
    """Return the UUID of every GPU that is listed, its line where that tells none."""
    if nvidia_smi is None:
        return ()
    try:
        listed = subprocess.run(
            [nvidia_smi, "-L"], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except (subprocess.TimeoutExpired, OSError):
        return ()
    lines = [line for line in listed.stdout.splitlines() if line.startswith("GPU ")]
    return tuple(match[1] if (match := _UUID.search(line)) else line for line in lines)


@cache
def compute_capabilities(nvidia_smi: str | None) -> tuple[float, ...]:
    """Return what each GPU can, as NVIDIA counts it (8.0 is an A100), by `nvidia_smi` (its path); none for None."""
    if nvidia_smi is None:
        return ()
    asked = [nvidia_smi, "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False).stdout
    except (subprocess.TimeoutExpired, OSError):
        return ()
    return tuple(float(line) for line in said.split() if re.fullmatch(r"\d+\.\d+", line))


def may_have_other_gpus() -> bool:
    """Return whether there may be GPUs that nvidia-smi does not count."""
    return _NO_NVIDIA.exists()
