"""Check what this machine has and lacks for training: one function and one result per check. Does not import torch."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import netrc
import os
import platform
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from rlhf_cli.errors import ConfigError, RewardError
from rlhf_cli.models.gguf import PACKAGED_MODELS, packaged_state
from rlhf_cli.plan.devices import host_bytes
from rlhf_cli.runs.disk_space import size
from rlhf_cli.runs.tracking.tracking_plan import has_login, netrc_knows, wandb_address
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


_DISTRIBUTION = "rlhf-cli"
_LARGE = ("torch", "trl", "transformers")
_PURPOSES = {
    "math": "rewards that compare formulas (trl_accuracy)",
    "reasoning": "data=reasoning_gym",
    "slurm": "launch=slurm",
    "plot": "comparisons as PNG files",
    "vllm": "rollouts by vLLM (launch.rollout=vllm)",
    "search": "sweeps that search (sweep=weights)",
    "tensorboard": "track=tensorboard",
    "trackio": "track=trackio",
    "mlflow": "track=mlflow",
}

InstalledVersion = Callable[[str], str | None]
"""Maps a package to its version, or None if it is not installed."""


@dataclass(frozen=True)
class RequiredPackages:
    """This package's requirements: a range of Python versions, packages, and extras by name."""

    python: str
    packages: tuple[Requirement, ...]
    extras: Mapping[str, tuple[Requirement, ...]]


def required_packages() -> RequiredPackages:
    """Return the requirements in this package's metadata.

    Raise ConfigError if there is none: the folder is on the path, and the package is not installed.
    """
    try:
        metadata = importlib.metadata.metadata(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError as error:
        raise ConfigError(
            "rlhf is not installed here, so its requirements are unknown",
            got=f"the code in {Path(__file__).parents[2]}, without the metadata of {_DISTRIBUTION}",
            hint="pip install -e .",
        ) from error
    lines = importlib.metadata.requires(_DISTRIBUTION) or []
    return required_by_metadata(metadata["Requires-Python"] or "", lines, metadata.get_all("Provides-Extra") or [])


def required_by_metadata(python: str, lines: Iterable[str], extras: Iterable[str]) -> RequiredPackages:
    """Return the requirements in a package's metadata; `lines` have markers like `; extra == 'math'`."""
    every = [Requirement(line) for line in lines]
    needed = tuple(filter(_applies, every))
    optional = [requirement for requirement in every if requirement not in needed]
    by_extra = {name: tuple(known for known in optional if _applies(known, name)) for name in extras}
    return RequiredPackages(python, needed, by_extra)


def _applies(requirement: Requirement, extra: str = "") -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def version_of(package: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def package_conditions(required: RequiredPackages, installed: InstalledVersion = version_of) -> list[Condition]:
    """Return a condition per required package that is missing or incompatible, else one for all, and one for Python."""
    here = platform.python_version()
    fits = here in SpecifierSet(required.python)
    wants = None if fits else f"an environment with Python {required.python}"
    found = f"{here}, needs {required.python}"
    python = Condition("packages", "Python", State.OK if fits else State.UNFIT, found, wants, is_needed=True)
    conditions = []
    for requirement in required.packages:
        version, fix = installed(requirement.name), f"pip install '{requirement.name}{requirement.specifier}'"
        if not _fits(requirement, version):
            state = State.MISSING if version is None else State.UNFIT
            found = f"{version or 'not installed'}, needs {requirement.specifier}"
            conditions.append(Condition("packages", requirement.name, state, found, fix, is_needed=True))
    versions = ", ".join(f"{name} {installed(name)}" for name in _LARGE)
    all_fit = f"all {len(required.packages)} fit: {versions}"
    return [python, *(conditions or [Condition("packages", "needed packages", State.OK, all_fit, is_needed=True)])]


def extra_conditions(required: RequiredPackages, installed: InstalledVersion = version_of) -> list[Condition]:
    """Return a condition per extra except `dev`: installed, missing, or incompatible. No extra is required."""
    conditions = []
    for name in [name for name in required.extras if name != "dev"]:
        requirements = required.extras[name]
        versions = {requirement.name: installed(requirement.name) for requirement in requirements}
        absent = [needed for package in versions for needed in _needs_of(package) if installed(needed) is None]
        fits = not absent and all(_fits(requirement, versions[requirement.name]) for requirement in requirements)
        state = State.OK if fits else State.UNFIT if all(versions.values()) else State.MISSING
        there = ", ".join(f"{package} {version}" for package, version in versions.items() if version is not None)
        found = f"{_PURPOSES.get(name, '')}{f': {there}' if there else ''}"
        found += f", without {', '.join(absent)}" if absent else ""
        fix = None if fits else f"pip install '{_DISTRIBUTION}[{name}]'"
        conditions.append(Condition("extras", name, state, found, fix))
    return conditions


def _needs_of(package: str) -> list[str]:
    """Return the packages that an installed package requires here; empty if it is not installed."""
    try:
        lines = importlib.metadata.requires(package) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [requirement.name for requirement in map(Requirement, lines) if _applies(requirement)]


def packaged_model_conditions() -> list[Condition]:
    """Return a condition per packaged model: where it comes from, or the command that installs it."""
    conditions = []
    for name, model in PACKAGED_MODELS.items():
        source = packaged_state(model)
        state, found = (
            (State.MISSING, f"model={name} needs it, or {model.hub} from the hub")
            if source is None
            else (State.OK, f"model={name}, from {source}")
        )
        conditions.append(Condition("extras", name, state, found, None if source else model.install))
    return conditions


def _fits(requirement: Requirement, version: str | None) -> bool:
    return version is not None and requirement.specifier.contains(version, prereleases=True)


_SMI_TIMEOUT_S = 10.0
_CUDA = re.compile(r"CUDA (?:UMD )?Version:\s*([\d.]+)")


@dataclass(frozen=True)
class Driver:
    """The output of nvidia-smi: the GPUs, the driver's version, and the newest CUDA that it supports.

    `trouble` is why nvidia-smi failed although it is installed. What is unknown is None.
    """

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
            subprocess.run(command, capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=False)
            for command in (query, [nvidia_smi])
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Driver(trouble=f"nvidia-smi: {error}")
    if listed.returncode:
        lines = (listed.stdout + listed.stderr).strip().splitlines()
        return Driver(trouble=lines[0] if lines else f"nvidia-smi ended with exit code {listed.returncode}")
    return parse_driver(listed.stdout, overview.stdout)


def parse_driver(listed: str, overview: str) -> Driver:
    """Parse the two outputs: a line per GPU with name, MiB and driver; and the heading with CUDA."""
    rows = [cells for cells in (line.split(", ") for line in listed.splitlines()) if len(cells) == 3]
    gpus = tuple(f"{name} {size(int(mib) * 2**20)}" if mib.isdigit() else name for name, mib, _ in rows)
    cuda = _CUDA.search(overview)
    return Driver(gpus, rows[-1][2] if rows else None, cuda[1] if cuda else None)


def installed_torch() -> tuple[str, str | None] | None:
    """Return the installed torch's version and the CUDA that it was built for (None for a CPU), without importing it.

    Return None if torch is not installed.
    """
    spec = importlib.util.find_spec("torch")
    return read_build(Path(spec.origin).with_name("version.py")) if spec is not None and spec.origin else None


def read_build(file: Path) -> tuple[str, str | None] | None:
    """Return the version and the CUDA that torch's version.py names, or None."""
    found = dict(re.findall(r"^(\w+)(?:: [^=]+)? = '([^']+)'", file.read_text(encoding="utf-8"), re.MULTILINE))
    return (found["__version__"], found.get("cuda")) if "__version__" in found else None


def gpu_condition(driver: Driver, torch: tuple[str, str | None] | None) -> Condition:
    """Return which GPUs there are, and whether the installed torch (its version and CUDA) can use them."""

    def condition(state: State, found: str, fix: str | None = None) -> Condition:
        return Condition("GPU", "GPU", state, found, fix)

    if driver.trouble is not None:
        return condition(State.UNFIT, driver.trouble, "install or repair the driver until nvidia-smi works")
    if not driver.gpus:
        return condition(State.WARN, "none; tiny models train on the CPU in minutes")
    more = f", {len(driver.gpus)} in all" if len(driver.gpus) > 2 else ""
    found = f"{', '.join(driver.gpus[:2])}{more}; driver {driver.version}, up to CUDA {driver.cuda or '?'}"
    if torch is None:
        return condition(State.OK, found)
    version, cuda = torch
    plain = version.partition("+")[0]
    if cuda is None:
        fix = f"pip uninstall -y torch && pip install torch=={plain}   # a build with CUDA"
        return condition(State.UNFIT, f"{found}; torch {version} is built without CUDA", fix)
    found += f"; torch {version} is built for CUDA {cuda}"
    wanted = int(cuda.partition(".")[0])
    if driver.cuda is not None and (newest := int(driver.cuda.partition(".")[0])) < wanted:
        return condition(State.UNFIT, found, f"a driver for CUDA {wanted}, or a torch=={plain} built for CUDA {newest}")
    return condition(State.OK, found)


_AREA = "machine"


_LEAST_DISK = 5 * 10**9


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


def sandbox_condition() -> Condition:
    """Return how model-written code is isolated here; runs a program in the sandbox to find out."""
    area, name = "tools", "sandbox"
    try:
        walls = protections()
    except (RewardError, OSError) as error:
        found = f"model-written code cannot be run: {getattr(error, 'got', None) or error}"
        return Condition(area, name, State.MISSING, found, "docs/how-to/rewards.md says what a machine has to allow")
    if walls["bubblewrap"] or walls["namespaces"]:
        by = "bubblewrap" if walls["bubblewrap"] else "namespaces of our own"
        return Condition(area, name, State.OK, f"{by}: no files, no network, limits")
    network = "" if walls.get("no_network") else " and use the network"
    found = f"resource limits only: model-written code can read files{network}"
    return Condition(area, name, State.WARN, found, "apt install bubblewrap")


_NETWORK = "network"
_TIMEOUT_S = 2.0


def hub_login_condition() -> Condition:
    """Return whether there is a token for the hub, and where it comes from."""
    from huggingface_hub import get_token

    if get_token() is None:
        found = "no token, so gated models and data cannot be read"
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
    try:
        host, _ = wandb_address()
    except ValueError as error:
        return Condition(
            _NETWORK, name, State.UNFIT, f"WANDB_BASE_URL is not an address: {error}", "unset WANDB_BASE_URL"
        )
    try:
        is_known = netrc_knows(host) or has_login(host)
    except (netrc.NetrcParseError, OSError, UnicodeDecodeError) as error:
        found = f"the netrc file cannot be read ({type(error).__name__})"
        return Condition(_NETWORK, name, State.UNFIT, found, "wandb login")
    if is_known:
        return Condition(_NETWORK, name, State.OK, f"a key for {host}, from `wandb login`")
    found = "no key: record runs offline (track=wandb_offline) and send them later with rlhf sync"
    return Condition(_NETWORK, name, State.MISSING, found, "wandb login, or a key in WANDB_API_KEY")


def hub_condition() -> Condition:
    """Return whether the hub answers within two seconds."""
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return Condition(_NETWORK, "hub", State.OK, "not queried: HF_HUB_OFFLINE is set, so only the cache is used")
    address = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    host, began = urllib.parse.urlsplit(address).hostname or address, time.monotonic()
    trouble = trouble_reaching(address, _TIMEOUT_S)
    if trouble is None:
        return Condition(_NETWORK, "hub", State.OK, f"{host} answered in {time.monotonic() - began:.1f} s")
    found = f"{host}: {trouble}; models and data come from the cache, or from files"
    fix = "export HF_HUB_OFFLINE=1, to skip the wait; behind a proxy, set HTTPS_PROXY"
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


def examine() -> list[Condition]:
    """Return all conditions, in the order of the table."""
    required = required_packages()
    cores = f"{len(os.sched_getaffinity(0))} cores"
    questions: list[Callable[[], Condition | list[Condition]]] = [
        lambda: gpu_condition(read_driver(shutil.which("nvidia-smi")), installed_torch()),
        lambda: package_conditions(required),
        lambda: [*extra_conditions(required), *packaged_model_conditions()],
        hub_condition,
        hub_login_condition,
        wandb_login_condition,
        lambda: Condition(_AREA, "cores and memory", State.OK, f"{cores}, {size(host_bytes() or 0)}"),
        disk_conditions,
        sandbox_condition,
    ]
    with ThreadPoolExecutor(max_workers=len(questions)) as pool:
        answers = [future.result() for future in [pool.submit(question) for question in questions]]
    return [condition for answer in answers for condition in (answer if isinstance(answer, list) else [answer])]
