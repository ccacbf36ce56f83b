"""Look at this machine: limits, tools, logins."""

from __future__ import annotations

import netrc
import os
import shutil
import subprocess
import sys
import threading
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
from rlhf_cli.runs.provenance import git_state
from rlhf_cli.services.judge_client import cache_folder
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


_TOOLS_AREA = "tools"
_TIMEOUT_S = 2.0


def sandbox_condition() -> Condition:
    """Return how model-written code is isolated here; runs a program in the sandbox to find out."""
    try:
        walls = protections()
    except (RewardError, OSError) as error:
        found = f"model-written code cannot be run: {getattr(error, 'got', None) or error}"
        return Condition(
            _TOOLS_AREA, "sandbox", State.MISSING, found, "docs/sandbox.md says what a machine has to allow"
        )
    if walls["bubblewrap"]:
        return Condition(_TOOLS_AREA, "sandbox", State.OK, "bubblewrap: no files, no network, limits")
    fix = "apt install bubblewrap"
    if walls["namespaces"]:
        return Condition(_TOOLS_AREA, "sandbox", State.OK, "namespaces of our own: no files, no network, limits")
    open_to = [] if walls.get("no_network") else ["the network"]
    found = f"limits alone: code of a model reads files{' and reaches ' + open_to[0] if open_to else ''}"
    return Condition(_TOOLS_AREA, "sandbox", State.WARN, found, fix)


def slurm_condition(sbatch: str | None = None) -> Condition:
    """Return whether jobs can be submitted to Slurm from here."""
    sbatch = sbatch or shutil.which("sbatch")
    if sbatch is None:
        return Condition(
            _TOOLS_AREA, "Slurm", State.MISSING, "no sbatch: runs are started here, launch=slurm is not for here"
        )
    sinfo = str(Path(sbatch).with_name("sinfo"))
    try:
        asked = subprocess.run(
            [sinfo, "-h", "-o", "%P"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return Condition(_TOOLS_AREA, "Slurm", State.WARN, "sbatch is there, and no cluster answers", "sinfo says more")
    if asked.returncode:
        why = (asked.stderr.strip().splitlines() or ["no cluster answers"])[0]
        return Condition(_TOOLS_AREA, "Slurm", State.WARN, f"sbatch is there; {why}", "sinfo says more")
    partitions = " ".join(asked.stdout.split())
    return Condition(_TOOLS_AREA, "Slurm", State.OK, f"partitions: {partitions}")


def git_condition() -> Condition:
    """Return whether a run started in this folder will record its commit."""
    if shutil.which("git") is None:
        found = "not installed: a run's provenance has no commit"
        return Condition(_TOOLS_AREA, "git", State.WARN, found, "apt install git")
    state = git_state(Path.cwd())
    if state is None:
        found = "this folder is in no repository: a run's provenance has no commit"
        return Condition(
            _TOOLS_AREA, "git", State.WARN, found, "git init && git add -A && git commit -m 'The beginning'"
        )
    commit = str(state["commit"])[:10]
    return Condition(
        _TOOLS_AREA, "git", State.OK, f"commit {commit}{', with changes that are in none' * bool(state['dirty'])}"
    )


def terminal_condition() -> Condition:
    """Return whether the terminal and the file system use UTF-8."""
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
    files = sys.getfilesystemencoding().lower().replace("-", "")
    width = shutil.get_terminal_size().columns
    what = f"a terminal of {width} columns" if sys.stdout.isatty() else "no terminal: tables are wide, without colours"
    if encoding != "utf8" or files != "utf8":
        language = os.environ.get("LC_ALL") or os.environ.get("LC_CTYPE") or os.environ.get("LANG") or "no LANG"
        found = f"{what}; {language} is not UTF-8"
        return Condition(_TOOLS_AREA, "terminal", State.WARN, found, "export LANG=C.UTF-8 PYTHONUTF8=1")
    return Condition(_TOOLS_AREA, "terminal", State.OK, f"{what}, UTF-8")


_LOGINS_AREA = "network"
_TRUE = ("1", "true", "yes", "on")
_WANDB = "https://api.wandb.ai"


def hub_login_condition() -> Condition:
    """Return whether there is a token for the hub, and where it comes from."""
    from huggingface_hub import get_token

    if get_token() is None:
        found = "no token: public models and data can be read, gated ones and --push cannot"
        return Condition(_LOGINS_AREA, "hub login", State.MISSING, found, "hf auth login, or a token in HF_TOKEN")
    variable = next((name for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") if os.environ.get(name)), None)
    return Condition(_LOGINS_AREA, "hub login", State.OK, f"a token, from {variable or 'hf auth login'}")


def wandb_login_condition() -> Condition:
    """Return whether there is a key for wandb, and where it comes from."""
    mode = os.environ.get("WANDB_MODE", "")
    if mode in ("offline", "disabled", "dryrun"):
        return Condition(_LOGINS_AREA, "wandb login", State.OK, f"not needed: WANDB_MODE={mode}")
    if os.environ.get("WANDB_API_KEY"):
        return Condition(_LOGINS_AREA, "wandb login", State.OK, "a key, from WANDB_API_KEY")
    host = urllib.parse.urlsplit(os.environ.get("WANDB_BASE_URL") or _WANDB).hostname or ""
    file = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
    try:
        known = netrc.netrc(file).authenticators(host) if file.is_file() else None
    except (netrc.NetrcParseError, OSError, UnicodeDecodeError) as error:
        what = f"{file} cannot be read ({type(error).__name__})"
        return Condition(_LOGINS_AREA, "wandb login", State.UNFIT, what, "wandb login")
    if known is not None:
        return Condition(_LOGINS_AREA, "wandb login", State.OK, f"a key for {host}, from {file}")
    found = "no key: runs are recorded offline (track=wandb_offline), and sent later by rlhf sync"
    return Condition(_LOGINS_AREA, "wandb login", State.MISSING, found, "wandb login, or a key in WANDB_API_KEY")


def hub_condition(reach: Callable[[str, float], str | None] | None = None) -> Condition:
    """Return whether the hub answers within two seconds."""
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in _TRUE:
        return Condition(
            _LOGINS_AREA, "hub", State.OK, "not asked: HF_HUB_OFFLINE is set, what is in the cache can be used"
        )
    address = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    began = time.monotonic()
    trouble = (reach or trouble_reaching)(address, _TIMEOUT_S)
    host = urllib.parse.urlsplit(address).hostname or address
    if trouble is None:
        return Condition(_LOGINS_AREA, "hub", State.OK, f"{host} answered in {time.monotonic() - began:.1f} s")
    found = f"{host}: {trouble}; models and data come from the cache, or from files"
    fix = "export HF_HUB_OFFLINE=1, which saves the waits; behind a proxy its address in HTTPS_PROXY"
    return Condition(_LOGINS_AREA, "hub", State.WARN, found, fix)


def trouble_reaching(address: str, timeout_s: float) -> str | None:
    """Return why a server does not answer in time, or None if it answers anything at all."""
    outcome: list[str | None] = []

    def ask() -> None:
        request = urllib.request.Request(address, method="HEAD")
        try:
            with urllib.request.urlopen(request, timeout=timeout_s):
                outcome.append(None)
        except urllib.error.HTTPError:
            outcome.append(None)
        except (OSError, ValueError) as error:
            outcome.append(str(getattr(error, "reason", error)))

    # A DNS lookup has no timeout, so leave its thread behind if it takes too long.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(timeout_s)
    return outcome[0] if outcome else f"no answer within {timeout_s:g} s"
