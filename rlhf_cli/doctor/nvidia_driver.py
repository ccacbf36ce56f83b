"""Read GPUs and driver from nvidia-smi."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass

_TIMEOUT_S = 10.0
_QUERY = "name,memory.total,driver_version,compute_cap"
_CUDA = re.compile(r"CUDA (?:UMD )?Version:\s*([\d.]+)")
_MEBIBYTE = 2**20


@dataclass(frozen=True)
class Gpu:
    """A GPU: name, memory (0 if unknown) and compute capability (9.0 is Hopper; None if unknown)."""

    name: str
    memory_bytes: int
    capability: tuple[int, int] | None


@dataclass(frozen=True)
class Driver:
    """The output of nvidia-smi: the GPUs, the driver's version, and the newest CUDA that it supports.

    `trouble` is why nvidia-smi failed although it is installed; unknown versions are None.
    """

    gpus: tuple[Gpu, ...] = ()
    version: str | None = None
    cuda: str | None = None
    trouble: str | None = None


def read_driver(nvidia_smi: str | None) -> Driver:
    """Query nvidia-smi at this path; None means that it is not installed and there are no GPUs."""
    if nvidia_smi is None:
        return Driver()
    try:
        listed = _said([nvidia_smi, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"])
        overview = _said([nvidia_smi])
    except (OSError, subprocess.TimeoutExpired) as error:
        return Driver(trouble=f"nvidia-smi: {error}")
    if listed.returncode:
        lines = (listed.stdout + listed.stderr).strip().splitlines()
        return Driver(trouble=lines[0] if lines else f"nvidia-smi ended with exit code {listed.returncode}")
    return parse_driver(listed.stdout, overview.stdout)


def parse_driver(listed: str, overview: str) -> Driver:
    """Parse the two outputs: a line per GPU with name, MiB, driver, capability; and the heading with CUDA."""
    gpus, version = [], None
    for line in listed.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 4:
            continue
        name, memory, version, capability = cells
        major, _, minor = capability.partition(".")
        known = (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None
        gpus.append(Gpu(name, int(memory) * _MEBIBYTE if memory.isdigit() else 0, known))
    cuda = _CUDA.search(overview)
    return Driver(tuple(gpus), version, cuda[1] if cuda else None)


def nvidia_smi() -> str | None:
    """Return the path of nvidia-smi, or None."""
    return shutil.which("nvidia-smi")


def _said(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
