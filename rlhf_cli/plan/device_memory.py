"""Detects the memory of this machine and of its GPUs, without torch."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache

_PROBE_TIMEOUT_S = 20
_MEBIBYTE = 2**20


def host_bytes() -> int | None:
    """Return the memory of this machine, or the container's limit if that is lower; None if unknown."""
    try:
        all_of_it = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
    limits = [all_of_it]
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(file, encoding="ascii") as stream:
                limits.append(int(stream.read()))
        except (OSError, ValueError):  # no such file, or `max`
            continue
    return min(limits)


def gpu_bytes() -> int | None:
    """Return the memory of the smallest visible NVIDIA GPU according to nvidia-smi, or None without a GPU."""
    return _smallest(shutil.which("nvidia-smi"), os.environ.get("CUDA_VISIBLE_DEVICES"))


@cache
def _smallest(nvidia_smi: str | None, visible: str | None) -> int | None:
    if nvidia_smi is None:
        return None
    command = [nvidia_smi, "--query-gpu=index,memory.total", "--format=csv,noheader,nounits"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False)
    except (subprocess.TimeoutExpired, OSError):
        return None
    sizes: dict[str, int] = {}
    for line in listed.stdout.splitlines():
        index, _, size = line.partition(",")
        if size.strip().isdigit():
            sizes[index.strip()] = int(size) * _MEBIBYTE
    seen = [entry.strip() for entry in visible.split(",")] if visible is not None else list(sizes)
    return min([sizes[entry] for entry in seen if entry in sizes], default=None)
