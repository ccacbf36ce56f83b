"""Check the cores, memory, disk and shared memory that this process may use, including container limits."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from rlhf_cli.cache_folder import cache_folder
from rlhf_cli.doctor.condition import Condition, State
from rlhf_cli.runs.disk_space import size

_AREA = "machine"
_LEAST_MEMORY = 4 * 10**9
_LEAST_DISK = 5 * 10**9
_LEAST_SHARED = 10**9
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
_MEMINFO = Path("/proc/meminfo")
_NO_LIMIT = 1 << 60
"""cgroup version 1 writes a number near 2^63 for no limit."""


def cores_condition(cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> Condition:
    """Return the number of cores that this process may use."""
    usable, there = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    quota = cpu_quota(cgroups, own)
    limits = [f"of {there}"] if usable < there else []
    limits += [f"the container's quota is {quota:g}"] if quota is not None and quota < usable else []
    found = f"{usable} cores" + (f" ({', '.join(limits)})" if limits else "")
    return Condition(_AREA, "cores", State.OK, found)


def memory_condition(cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUP, meminfo: Path = _MEMINFO) -> Condition:
    """Return the free memory and the container's memory limit."""
    total, available = read_meminfo(meminfo)
    limit = memory_limit(cgroups, own)
    found = f"{size(available)} of {size(total)} free"
    if limit is not None and limit < total:
        found += f"; the container's limit is {size(limit)}"
    usable = min(available, limit if limit is not None else available)
    if usable < _LEAST_MEMORY:
        fix = "end what else runs here, or give the container more"
        return Condition(_AREA, "memory", State.WARN, found + "; torch and TRL alone take 0.6 GB a process", fix)
    return Condition(_AREA, "memory", State.OK, found)


def disk_conditions() -> list[Condition]:
    """Return the free disk space for runs, for the hub's cache, and for models that are built here."""
    hub = os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME") or "~/.cache/huggingface", "hub")
    places = {
        "runs": (Path("runs").absolute(), "run.root=FOLDER"),
        "hub cache": (Path(hub).expanduser(), "export HF_HOME=FOLDER"),
        "model cache": (cache_folder("models"), "export RLHF_CACHE=FOLDER"),
    }
    return [disk_condition(name, place, elsewhere) for name, (place, elsewhere) in places.items()]


def disk_condition(name: str, place: Path, elsewhere: str) -> Condition:
    """Return the free space in a folder, which may not exist yet; `elsewhere` is how to set another one."""
    above = next(folder for folder in (place, *place.parents) if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        return Condition(_AREA, name, State.UNFIT, f"{place} cannot be written to", elsewhere, is_needed=name == "runs")
    free = shutil.disk_usage(above).free
    found = f"{place}: {size(free)} free"
    if free < _LEAST_DISK:
        return Condition(_AREA, name, State.WARN, found + ", a checkpoint of 0.6 B parameters takes 7 GB", elsewhere)
    return Condition(_AREA, name, State.OK, found)


def shared_memory_condition(place: Path = Path("/dev/shm")) -> Condition:
    """Return the size of shared memory, which several ranks on one machine use to communicate."""
    if not place.is_dir():
        return Condition(_AREA, "shared memory", State.WARN, f"there is no {place}", "mount it, for several processes")
    total = shutil.disk_usage(place).total
    found = f"{place}: {size(total)}"
    if total < _LEAST_SHARED:
        fix = "docker run --shm-size=8g, for several processes"
        return Condition(_AREA, "shared memory", State.WARN, f"{found}, little for several processes", fix)
    return Condition(_AREA, "shared memory", State.OK, found)


def read_meminfo(file: Path = _MEMINFO) -> tuple[int, int]:
    """Return the machine's total and available memory, in bytes."""
    lines = (line.split(":") for line in file.read_text(encoding="ascii").splitlines())
    kib = {name: int(value.split()[0]) for name, value in lines}
    return kib["MemTotal"] * 1024, kib.get("MemAvailable", kib["MemFree"]) * 1024


def memory_limit(cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> int | None:
    """Return the smallest memory limit of this process's cgroups, in bytes, or None."""
    texts = [_text(place / "memory.max") for place in _groups(cgroups, own)]
    texts.append(_text(cgroups / "memory" / "memory.limit_in_bytes"))
    limits = [int(text) for text in texts if text.isdigit() and int(text) < _NO_LIMIT]
    return min(limits, default=None)


def cpu_quota(cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> float | None:
    """Return the smallest CPU quota of this process's cgroups, in cores, or None."""
    texts = [_text(place / "cpu.max") for place in _groups(cgroups, own)]
    older = cgroups / "cpu"
    texts.append(f"{_text(older / 'cpu.cfs_quota_us')} {_text(older / 'cpu.cfs_period_us')}")
    pairs = [text.split() for text in texts]
    quotas = [int(pair[0]) / int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0].isdigit()]
    return min(quotas, default=None)


def _groups(cgroups: Path, own: Path) -> Iterator[Path]:
    """Yield this process's cgroup and its parents (version 2)."""
    line = next((line for line in _text(own).splitlines() if line.startswith("0::")), "0::/")
    group = cgroups / line.removeprefix("0::").strip("/")
    yield group
    yield from (place for place in group.parents if place == cgroups or place.is_relative_to(cgroups))


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
