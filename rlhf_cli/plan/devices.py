"""Finds out without torch how many processes `auto` means on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Literal

from rlhf_cli.config.schema.launch_section import Launch

_PROBE_TIMEOUT_S = 20


def count_processes(asked: int | Literal["auto"], device: str) -> int:
    """Return the number of processes: one a GPU, or one where there is none or the device is the CPU.

    A number in `asked` is returned as it is.
    """
    if asked != "auto":
        return asked
    return 1 if device == "cpu" else max(1, num_gpus())


def planned_processes(launch: Launch) -> int:
    """Return the number of processes that a run will have: on this machine, or on the node that Slurm gives it."""
    if launch.slurm is None:
        return count_processes(launch.processes, launch.device)
    if launch.processes != "auto":
        return launch.processes
    return max(1, launch.slurm.gpus_per_node or 0) if launch.device != "cpu" else 1


def num_gpus() -> int:
    """Count the visible NVIDIA GPUs: by CUDA_VISIBLE_DEVICES where it is set, else by what nvidia-smi lists.

    Without nvidia-smi, or where it does not answer in time, the count is 0.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([entry for entry in visible.split(",") if entry.strip() and entry.strip() != "-1"])
    if shutil.which("nvidia-smi") is None:
        return 0
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
