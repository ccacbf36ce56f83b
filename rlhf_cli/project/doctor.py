"""Check what this machine has and lacks for training: one function and one result per check. Does not import torch."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from rich.filesize import decimal as size

from rlhf_cli.errors import ConfigError, RewardError
from rlhf_cli.plan.devices import host_bytes, num_cores
from rlhf_cli.runs.provenance import version_of
from rlhf_cli.runs.tracking.wandb_files import LOGIN_ERRORS, has_login, wandb_address
from rlhf_cli.services.sandbox.running import protections


class State(StrEnum):
    """The state of something: fine, worth knowing, missing, or incompatible with the rest."""

    OK = "ok"
    WARN = "warn"
    MISSING = "missing"
    UNFIT = "unfit"


@dataclass(frozen=True)
class Condition:
    """The result of one check. `found` never holds a secret; `fix` is what to type, None if there is nothing to fix."""

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


_DISTRIBUTION = "rlhf-cli"
_PURPOSES = {
    "math": "rewards that compare formulas (trl_accuracy)",
    "reasoning": "data=reasoning_gym",
    "slurm": "launch=slurm",
    "plot": "comparisons as PNG files",
    "vllm": "rollouts by vLLM (launch.rollout=vllm)",
    "search": "sweeps that search (sweep=weights)",
}


def package_conditions() -> list[Condition]:
    """Return a condition for Python, for each required package that does not fit (else one for all), and per extra.

    Raise ConfigError if the metadata of this package is missing, because its folder is only on the path.
    """
    try:
        metadata = importlib.metadata.metadata(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError as error:
        got = f"the code in {Path(__file__).parents[2]}, without the metadata of {_DISTRIBUTION}"
        what = "rlhf is not installed here, so its requirements are unknown"
        raise ConfigError(what, got=got, hint="pip install -e .") from error
    required = requirements_of(_DISTRIBUTION)
    here, python = platform.python_version(), metadata["Requires-Python"] or ""
    packages = list(map(_package_condition, required))
    wrong = [condition for condition in packages if condition.state != State.OK]
    versions = ", ".join(f"{name} {version_of(name)}" for name in ("torch", "trl", "transformers"))
    fits = SpecifierSet(python).contains(here)
    state, wants = (State.OK, None) if fits else (State.UNFIT, f"an environment with Python {python}")
    extras = [name for name in metadata.get_all("Provides-Extra") or [] if name != "dev"]
    return [
        Condition("packages", "Python", state, f"{here}, needs {python}", wants, is_needed=True),
        *(wrong or [Condition("packages", "needed packages", State.OK, f"all {len(required)} fit: {versions}")]),
        *(_extra_condition(name, required) for name in extras),
    ]


def requirements_of(package: str, extra: str = "") -> list[Requirement]:
    """Return the packages that an installed package requires here with an extra; none if it is not installed."""
    try:
        every = map(Requirement, importlib.metadata.requires(package) or [])
    except importlib.metadata.PackageNotFoundError:
        return []
    return [needed for needed in every if needed.marker is None or needed.marker.evaluate({"extra": extra})]


def _package_condition(needed: Requirement) -> Condition:
    version, fix = version_of(needed.name), f"pip install '{needed.name}{needed.specifier}'"
    if version is not None and needed.specifier.contains(version, prereleases=True):
        return Condition("packages", needed.name, State.OK, version, is_needed=True)
    state, found = (State.MISSING, "not installed") if version is None else (State.UNFIT, version)
    return Condition("packages", needed.name, state, f"{found}, needs {needed.specifier}", fix, is_needed=True)


def _extra_condition(name: str, always: Sequence[Requirement]) -> Condition:
    """Return whether an extra's packages, and those that they require, are installed and fit."""
    known = {str(needed) for needed in always}
    own = [needed for needed in requirements_of(_DISTRIBUTION, name) if str(needed) not in known]
    conditions = list(map(_package_condition, own))
    there = [f"{one.name} {one.found}" for one in conditions if one.state == State.OK]
    absent = [one.name for one in conditions if one.state == State.MISSING]
    needs = (needed.name for one in own if version_of(one.name) for needed in requirements_of(one.name))
    absent += [needed for needed in needs if version_of(needed) is None]
    is_old = any(one.state == State.UNFIT for one in conditions)
    state = State.UNFIT if is_old or (there and absent) else State.MISSING if absent else State.OK
    found = ", ".join([_PURPOSES.get(name, f"track={name}"), *there, *(f"without {package}" for package in absent)])
    fix = None if state == State.OK else f"pip install '{_DISTRIBUTION}[{name}]'"
    return Condition("extras", name, state, found, fix)


@dataclass(frozen=True)
class Driver:
    """What nvidia-smi says: the GPUs, the driver's version, the newest CUDA that it supports; or why it failed."""

    gpus: tuple[str, ...] = ()
    version: str | None = None
    cuda: str | None = None
    trouble: str | None = None


def read_driver(nvidia_smi: str | None) -> Driver:
    """Query nvidia-smi at this path; None means that it is not installed and there are no GPUs."""
    if nvidia_smi is None:
        return Driver()
    query = [nvidia_smi, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        listed, overview = (
            subprocess.run(command, capture_output=True, text=True, timeout=10.0) for command in (query, [nvidia_smi])
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Driver(trouble=f"nvidia-smi: {error}")
    if listed.returncode:
        lines = (listed.stdout + listed.stderr).strip().splitlines()
        return Driver(trouble=lines[0] if lines else f"nvidia-smi ended with exit code {listed.returncode}")
    rows = [cells for cells in (line.split(", ") for line in listed.stdout.splitlines()) if len(cells) == 3]
    gpus = tuple(f"{name} {size(int(mib) * 2**20)}" if mib.isdigit() else name for name, mib, _ in rows)
    cuda = re.search(r"CUDA (?:UMD )?Version:\s*([\d.]+)", overview.stdout)
    return Driver(gpus, rows[-1][2] if rows else None, cuda[1] if cuda else None)


def read_build(file: Path) -> tuple[str, str | None] | None:
    """Return the version and the CUDA (None for a CPU) that torch's version.py names, without running it."""
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    found = dict(re.findall(r"^(\w+)(?:: [^=]+)? = '([^']+)'", text, re.MULTILINE))
    return (found["__version__"], found.get("cuda")) if "__version__" in found else None


def gpu_condition(driver: Driver, torch: tuple[str, str | None] | None) -> Condition:
    """Return which GPUs there are, and whether the installed torch (its version and CUDA) can use them."""
    if driver.trouble is not None:
        return Condition("GPU", "GPU", State.UNFIT, driver.trouble, "repair the driver until nvidia-smi works")
    if not driver.gpus:
        return Condition("GPU", "GPU", State.WARN, "none; tiny models train on the CPU in minutes")
    found, fix = f"{', '.join(driver.gpus)}; driver {driver.version}, up to CUDA {driver.cuda or '?'}", None
    if torch is not None:
        version, cuda = torch
        plain = version.partition("+")[0]
        found += f"; torch {version} is built {f'for CUDA {cuda}' if cuda else 'without CUDA'}"
        if cuda is None:
            fix = f"pip uninstall -y torch && pip install torch=={plain}   # a build with CUDA"
        elif driver.cuda is not None and int(driver.cuda.partition(".")[0]) < int(cuda.partition(".")[0]):
            fix = f"a newer driver for CUDA {cuda}, or a torch=={plain} built for CUDA {driver.cuda}"
    return Condition("GPU", "GPU", State.UNFIT if fix else State.OK, found, fix)


_LEAST_DISK = 5 * 10**9


def disk_condition(name: str, place: Path, elsewhere: str) -> Condition:
    """Return the free space in a folder, which may not exist yet; `elsewhere` is how to set another one."""
    condition = partial(Condition, "machine", name)
    above = next(folder for folder in (place, *place.parents) if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        return condition(State.UNFIT, f"{place} cannot be written to", elsewhere, is_needed=name == "runs")
    free = shutil.disk_usage(above).free
    found = f"{place}: {size(free)} free"
    if free < _LEAST_DISK:
        return condition(State.WARN, f"{found}, a checkpoint of 0.6 B parameters takes 7 GB", elsewhere)
    return condition(State.OK, found)


def sandbox_condition() -> Condition:
    """Return how model-written code is isolated here; runs a program in the sandbox to find out."""
    condition = partial(Condition, "tools", "sandbox")
    try:
        walls = protections()
    except (RewardError, OSError) as error:
        found = f"model-written code cannot be run: {getattr(error, 'got', None) or error}"
        return condition(State.MISSING, found, "docs/how-to/rewards.md says what a machine has to allow")
    if walls["files_hidden"] and walls["no_network"]:
        own = "namespaces of our own" if walls["namespaces"] else "Landlock and a socket filter"
        by = "bubblewrap" if walls["bubblewrap"] else own
        return condition(State.OK, f"{by}: no files, no network, limits")
    can = " and ".join(("read files",) * (not walls["files_hidden"]) + ("use the network",) * (not walls["no_network"]))
    return condition(State.WARN, f"resource limits only: model-written code can {can}", "apt install bubblewrap")


def hub_login_condition() -> Condition:
    """Return whether there is a token for the hub."""
    from huggingface_hub import get_token

    condition = partial(Condition, "logins", "hub login")
    if get_token() is not None:
        return condition(State.OK, "a token")
    found = "no token, so gated models and data cannot be read"
    return condition(State.MISSING, found, "hf auth login, or a token in HF_TOKEN")


def wandb_login_condition() -> Condition:
    """Return whether there is a key for wandb, and where it comes from."""
    condition = partial(Condition, "logins", "wandb login")
    if os.environ.get("WANDB_API_KEY"):
        return condition(State.OK, "a key, from WANDB_API_KEY")
    try:
        host, _ = wandb_address()
        if has_login(host):
            return condition(State.OK, f"a key for {host}, from `wandb login`")
    except LOGIN_ERRORS as error:
        return condition(State.UNFIT, f"WANDB_BASE_URL or netrc is wrong ({type(error).__name__})", "wandb login")
    found = "no key: record runs offline (track=wandb_offline) and send them later with rlhf sync"
    return condition(State.MISSING, found, "wandb login, or a key in WANDB_API_KEY")


def examine() -> list[Condition]:
    """Return all conditions, in the order of the table."""
    from huggingface_hub.constants import HF_HUB_CACHE

    torch = importlib.util.find_spec("torch")
    build = read_build(Path(torch.origin).with_name("version.py")) if torch is not None and torch.origin else None
    cores = f"{num_cores()} cores, {size(host_bytes())}"
    return [
        gpu_condition(read_driver(shutil.which("nvidia-smi")), build),
        *package_conditions(),
        hub_login_condition(),
        wandb_login_condition(),
        Condition("machine", "cores and memory", State.OK, cores),
        disk_condition("runs", Path("runs").absolute(), "run.root=FOLDER"),
        disk_condition("hub cache", Path(HF_HUB_CACHE), "export HF_HOME=FOLDER"),
        sandbox_condition(),
    ]
