"""Look at this machine: its limits, its sandbox, and the logins for the hub and wandb."""

from __future__ import annotations

import netrc
import os
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from rlhf_cli.errors import RewardError
from rlhf_cli.runs.disk_space import size
from rlhf_cli.services.cache_folder import cache_folder
from rlhf_cli.services.sandbox.running import protections


class State(StrEnum):
    """The state of something: fine, worth knowing, missing, or incompatible with the rest."""

    OK = "ok"
    WARN = "warn"
    MISSING = "missing"
    UNFIT = "unfit"


@dataclass(frozen=True)
class Condition:
    """The result of one check. `found` never holds a secret.

    `fix` is what to type, or None if there is nothing to fix. `is_needed` is True if training requires it.
    """

    area: str
    name: str
    state: State
    found: str
    fix: str | None = None
    is_needed: bool = False

    @property
    def prevents_training(self) -> bool:
        """Return whether this makes training impossible."""
        return self.is_needed and self.state in (State.MISSING, State.UNFIT)


def can_train(conditions: Sequence[Condition]) -> bool:
    """Return whether everything required is present and compatible."""
    return not any(condition.prevents_training for condition in conditions)


_AREA = "machine"
_LEAST_MEMORY = 4 * 10**9
_LEAST_DISK = 5 * 10**9
_LEAST_SHARED = 10**9
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
_MEMINFO = Path("/proc/meminfo")


def cores_condition(cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> Condition:
    """Return the number of cores that this process may use."""
    usable, quota = len(os.sched_getaffinity(0)), cpu_quota(cgroups, own)
    limit = f" (the container's quota is {quota:g})" if quota is not None and quota < usable else ""
    return Condition(_AREA, "cores", State.OK, f"{usable} cores{limit}")


def memory_condition(cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUP, meminfo: Path = _MEMINFO) -> Condition:
    """Return the free memory and the container's memory limit."""
    total, available = read_meminfo(meminfo)
    limit = memory_limit(cgroups, own)
    found = f"{size(available)} of {size(total)} free"
    if limit is not None and limit < total:
        found += f"; the container's limit is {size(limit)}"
    if min(available, limit if limit is not None else available) < _LEAST_MEMORY:
        fix = "end what else runs here, or give the container more"
        return Condition(_AREA, "memory", State.WARN, found + "; torch and TRL alone take 0.6 GB a process", fix)
    return Condition(_AREA, "memory", State.OK, found)


def disk_conditions() -> list[Condition]:
    """Return the free disk space for runs, for the hub's cache, and for models that are built here."""
    hub = os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME") or "~/.cache/huggingface", "hub")
    return [
        disk_condition("runs", Path("runs").absolute(), "run.root=FOLDER"),
        disk_condition("hub cache", Path(hub).expanduser(), "export HF_HOME=FOLDER"),
        disk_condition("model cache", cache_folder("models"), "export RLHF_CACHE=FOLDER"),
    ]


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
    total = shutil.disk_usage(place).total if place.is_dir() else 0
    if total < _LEAST_SHARED:
        found, fix = f"{place}: {size(total)}, too little for several processes", "docker run --shm-size=8g"
        return Condition(_AREA, "shared memory", State.WARN, found, fix)
    return Condition(_AREA, "shared memory", State.OK, f"{place}: {size(total)}")


def read_meminfo(file: Path = _MEMINFO) -> tuple[int, int]:
    """Return the machine's total and available memory, in bytes."""
    lines = (line.split(":") for line in file.read_text(encoding="ascii").splitlines())
    kib = {name: int(value.split()[0]) for name, value in lines}
    return kib["MemTotal"] * 1024, kib["MemAvailable"] * 1024


def memory_limit(cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> int | None:
    """Return the smallest memory limit of this process's cgroups (version 2), in bytes, or None."""
    texts = [_text(place / "memory.max") for place in _groups(cgroups, own)]
    return min((int(text) for text in texts if text.isdigit()), default=None)


def cpu_quota(cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> float | None:
    """Return the smallest CPU quota of this process's cgroups (version 2), in cores, or None."""
    pairs = [_text(place / "cpu.max").split() for place in _groups(cgroups, own)]
    return min((int(pair[0]) / int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0].isdigit()), default=None)


def _groups(cgroups: Path, own: Path) -> Iterator[Path]:
    """Yield this process's cgroup and its parents."""
    line = next((line for line in _text(own).splitlines() if line.startswith("0::")), "0::/")
    group = cgroups / line.removeprefix("0::").strip("/")
    yield group
    yield from (place for place in group.parents if place.is_relative_to(cgroups))


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def sandbox_condition() -> Condition:
    """Return how model-written code is isolated here; runs a program in the sandbox to find out."""
    area, name = "tools", "sandbox"
    try:
        walls = protections()
    except (RewardError, OSError) as error:
        found = f"model-written code cannot be run: {getattr(error, 'got', None) or error}"
        return Condition(area, name, State.MISSING, found, "docs/how-to/sandbox.md says what a machine has to allow")
    if walls["bubblewrap"] or walls["namespaces"]:
        by = "bubblewrap" if walls["bubblewrap"] else "namespaces of our own"
        return Condition(area, name, State.OK, f"{by}: no files, no network, limits")
    network = "" if walls.get("no_network") else " and reaches the network"
    found = f"limits alone: code of a model reads files{network}"
    return Condition(area, name, State.WARN, found, "apt install bubblewrap")


_NETWORK = "network"
_TIMEOUT_S = 2.0


def hub_login_condition() -> Condition:
    """Return whether there is a token for the hub, and where it comes from."""
    from huggingface_hub import get_token

    if get_token() is None:
        found = "no token: public models and data can be read, gated ones and --push cannot"
        return Condition(_NETWORK, "hub login", State.MISSING, found, "hf auth login, or a token in HF_TOKEN")
    source = "HF_TOKEN" if os.environ.get("HF_TOKEN") else "hf auth login"
    return Condition(_NETWORK, "hub login", State.OK, f"a token, from {source}")


def wandb_login_condition() -> Condition:
    """Return whether there is a key for wandb, and where it comes from."""
    name = "wandb login"
    mode = os.environ.get("WANDB_MODE", "")
    if mode in ("offline", "disabled"):
        return Condition(_NETWORK, name, State.OK, f"not needed: WANDB_MODE={mode}")
    if os.environ.get("WANDB_API_KEY"):
        return Condition(_NETWORK, name, State.OK, "a key, from WANDB_API_KEY")
    host = urllib.parse.urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    file = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
    try:
        known = netrc.netrc(file).authenticators(host) if file.is_file() else None
    except (netrc.NetrcParseError, OSError, UnicodeDecodeError) as error:
        return Condition(_NETWORK, name, State.UNFIT, f"{file} cannot be read ({type(error).__name__})", "wandb login")
    if known is not None:
        return Condition(_NETWORK, name, State.OK, f"a key for {host}, from {file}")
    found = "no key: runs are recorded offline (track=wandb_offline), and sent later by rlhf sync"
    return Condition(_NETWORK, name, State.MISSING, found, "wandb login, or a key in WANDB_API_KEY")


def hub_condition(reach: Callable[[str, float], str | None] | None = None) -> Condition:
    """Return whether the hub answers within two seconds."""
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return Condition(_NETWORK, "hub", State.OK, "not asked: HF_HUB_OFFLINE is set, the cache can be used")
    address = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    host, began = urllib.parse.urlsplit(address).hostname or address, time.monotonic()
    trouble = (reach or trouble_reaching)(address, _TIMEOUT_S)
    if trouble is None:
        return Condition(_NETWORK, "hub", State.OK, f"{host} answered in {time.monotonic() - began:.1f} s")
    found = f"{host}: {trouble}; models and data come from the cache, or from files"
    fix = "export HF_HUB_OFFLINE=1, which saves the waits; behind a proxy its address in HTTPS_PROXY"
    return Condition(_NETWORK, "hub", State.WARN, found, fix)


def trouble_reaching(address: str, timeout_s: float) -> str | None:
    """Return why a server does not answer in time, or None if it answers anything at all."""
    try:
        with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=timeout_s):
            return None
    except urllib.error.HTTPError:
        return None
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))
