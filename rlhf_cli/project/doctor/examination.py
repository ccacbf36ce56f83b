"""Run all examinations: torch against GPUs and driver, the installed packages, and the machine."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from rlhf_cli.project.doctor import machine
from rlhf_cli.project.doctor.machine import Condition, State
from rlhf_cli.runs.disk_space import size

_DISTRIBUTION = "rlhf-cli"
_LARGE = ("torch", "trl", "transformers")
_PURPOSES = {
    "math": "rewards that compare formulas (trl_accuracy)",
    "judge": "a language model as a judge",
    "slurm": "launch=slurm",
    "plot": "pictures as PNG files",
    "vllm": "rollouts by vLLM (launch.rollout=vllm)",
    "search": "sweeps that search (sweep=weights)",
    "wandb-view": "rlhf compare --wandb-view",
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
    """Return the requirements in this package's metadata."""
    metadata = importlib.metadata.metadata(_DISTRIBUTION)
    lines = importlib.metadata.requires(_DISTRIBUTION) or []
    return required_by_metadata(metadata["Requires-Python"] or "", lines, metadata.get_all("Provides-Extra") or [])


def required_by_metadata(python: str, lines: Iterable[str], extras: Iterable[str]) -> RequiredPackages:
    """Return the requirements in a package's metadata; `lines` have markers like `; extra == 'math'`."""
    every = [Requirement(line) for line in lines]
    needed = tuple(one for one in every if _applies(one, ""))
    of_extras = {name: tuple(one for one in every if _applies(one, name) and one not in needed) for name in extras}
    return RequiredPackages(python, needed, of_extras)


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def version_of(package: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def python_condition(required: RequiredPackages, version: str | None = None) -> Condition:
    """Return whether this Python's version is supported."""
    version = version or platform.python_version()
    fits = version in SpecifierSet(required.python)
    fix = None if fits else f"an environment with Python {required.python}"
    found = f"{version}, {required.python} is wanted"
    return Condition("packages", "Python", State.OK if fits else State.UNFIT, found, fix, is_needed=True)


def package_conditions(required: RequiredPackages, installed: InstalledVersion = version_of) -> list[Condition]:
    """Return a condition per required package that is missing or incompatible, else one for all of them."""
    conditions = []
    for one in required.packages:
        version, fix = installed(one.name), f"pip install '{one.name}{one.specifier}'"
        if not _fits(one, version):
            state = State.MISSING if version is None else State.UNFIT
            found = f"{version or 'not installed'}, {one.specifier} is wanted"
            conditions.append(Condition("packages", one.name, state, found, fix, is_needed=True))
    versions = ", ".join(f"{name} {installed(name)}" for name in _LARGE)
    all_fit = f"all {len(required.packages)} fit: {versions}"
    return conditions or [Condition("packages", "needed packages", State.OK, all_fit, is_needed=True)]


def extra_conditions(required: RequiredPackages, installed: InstalledVersion = version_of) -> list[Condition]:
    """Return a condition per extra except `dev`: installed, missing, or incompatible. No extra is required."""
    conditions = []
    for name in [name for name in required.extras if name != "dev"]:
        versions = {one.name: installed(one.name) for one in required.extras[name]}
        fits = all(_fits(one, versions[one.name]) for one in required.extras[name])
        state = State.OK if fits else State.UNFIT if all(versions.values()) else State.MISSING
        there = ", ".join(f"{package} {version}" for package, version in versions.items() if version is not None)
        found = f"{_PURPOSES.get(name, '')}{f': {there}' if there else ''}"
        fix = None if fits else f"pip install '{_DISTRIBUTION}[{name}]'"
        conditions.append(Condition("extras", name, state, found, fix))
    return conditions


def _fits(requirement: Requirement, version: str | None) -> bool:
    return version is not None and requirement.specifier.contains(version, prereleases=True)


_AREA = "GPU"
_SMI_TIMEOUT_S, _TORCH_TIMEOUT_S = 10.0, 180.0
_SMI_QUERY = "name,memory.total,driver_version,compute_cap"
_CUDA = re.compile(r"CUDA (?:UMD )?Version:\s*([\d.]+)")
_OLDEST_OF_CUDA_13 = (7, 5)
"""CUDA 13 dropped GPUs older than Turing (its release notes)."""
_FIRST_WITH_BFLOAT16 = (8, 0)


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
    query = [nvidia_smi, f"--query-gpu={_SMI_QUERY}", "--format=csv,noheader,nounits"]
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
    """Parse the two outputs: a line per GPU with name, MiB, driver, capability; and the heading with CUDA."""
    gpus, version = [], None
    for cells in (line.split(", ") for line in listed.splitlines()):
        if len(cells) != 4:
            continue
        name, memory, version, capability = cells
        major, _, minor = capability.partition(".")
        known = (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None
        gpus.append(Gpu(name, int(memory) * 2**20 if memory.isdigit() else 0, known))
    cuda = _CUDA.search(overview)
    return Driver(tuple(gpus), version, cuda[1] if cuda else None)


@dataclass(frozen=True)
class TorchBuild:
    """The installed torch: its version, and the CUDA version that it was built for, or None."""

    version: str
    cuda: str | None = None


def installed_torch() -> TorchBuild | None:
    """Return the build in torch/version.py, parsed without running it, or None if torch is not installed."""
    spec = importlib.util.find_spec("torch")
    return read_build(Path(spec.origin).with_name("version.py")) if spec is not None and spec.origin else None


def read_build(file: Path) -> TorchBuild | None:
    """Return the build that torch's version.py names, or None."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    values: dict[str, object] = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            values[target.id] = value.value
    version, cuda = values.get("__version__"), values.get("cuda")
    return TorchBuild(version, cuda if isinstance(cuda, str) else None) if isinstance(version, str) else None


def gpu_condition(driver: Driver, torch: TorchBuild | None) -> Condition:
    """Return which GPUs there are, and whether the installed torch can use them."""
    if driver.trouble is not None:
        return Condition(_AREA, "GPU", State.UNFIT, driver.trouble, "the driver has to answer: nvidia-smi")
    if not driver.gpus:
        return Condition(_AREA, "GPU", State.WARN, "none: on a CPU tiny models train, in minutes")
    named = ", ".join(f"{gpu.name} {size(gpu.memory_bytes)}" for gpu in driver.gpus[:2])
    more = f", {len(driver.gpus)} in all" if len(driver.gpus) > 2 else ""
    found = f"{named}{more}; driver {driver.version}, up to CUDA {driver.cuda or '?'}"
    if torch is None:
        return Condition(_AREA, "GPU", State.OK, found)
    found += f"; torch {torch.version} is built for {f'CUDA {torch.cuda}' if torch.cuda else 'no GPU'}"
    plain = torch.version.partition("+")[0]
    if torch.cuda is None:
        fix = f"pip uninstall -y torch && pip install torch=={plain}   # a build with CUDA"
        return Condition(_AREA, "GPU", State.UNFIT, found, fix)
    if driver.cuda is not None and _major(driver.cuda) < _major(torch.cuda):
        fix = f"a driver for CUDA {_major(torch.cuda)}, or a torch=={plain} built for CUDA {_major(driver.cuda)}"
        return Condition(_AREA, "GPU", State.UNFIT, found, fix)
    oldest = min((gpu.capability for gpu in driver.gpus if gpu.capability is not None), default=_FIRST_WITH_BFLOAT16)
    if _major(torch.cuda) >= 13 and oldest < _OLDEST_OF_CUDA_13:
        older = f"CUDA 13 has no code for compute capability {oldest[0]}.{oldest[1]}"
        return Condition(_AREA, "GPU", State.UNFIT, f"{found}; {older}", f"a torch=={plain} built for CUDA 12")
    if oldest < _FIRST_WITH_BFLOAT16:
        return Condition(_AREA, "GPU", State.WARN, f"{found}; no bfloat16", "launch.precision=fp16")
    return Condition(_AREA, "GPU", State.OK, found)


def _major(version: str) -> int:
    return int(version.partition(".")[0])


_PROGRAM = """
import json, torch
device = "cuda" if torch.cuda.is_available() else "cpu"
a = torch.ones(64, 64, device=device)
name = torch.cuda.get_device_name(0) if device == "cuda" else "the CPU"
print(json.dumps({"version": torch.__version__, "name": name, "sum": (a @ a).sum().item()}))
"""
_SUM = 64.0**3


def computing_condition() -> Condition:
    """Import torch in a separate process and multiply two matrices, on the GPU if there is one."""
    command = [sys.executable, "-c", _PROGRAM]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TORCH_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return _broken_torch(f"torch did not compute within {_TORCH_TIMEOUT_S:.0f} s")
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return _broken_torch(lines[-1] if lines else f"exit code {done.returncode}")
    found = json.loads(done.stdout.splitlines()[-1])
    if found["sum"] != _SUM:
        return _broken_torch(f"on {found['name']} a product of ones sums to {found['sum']:g}, not {_SUM:g}")
    says = f"torch {found['version']} computes on {found['name']}"
    return Condition(_AREA, "torch", State.OK, says, is_needed=True)


def _broken_torch(found: str) -> Condition:
    return Condition(_AREA, "torch", State.UNFIT, found, "pip install --force-reinstall torch", is_needed=True)


def examine(*, with_torch: bool) -> list[Condition]:
    """Return all conditions, in the order of the table; `with_torch` also imports torch and runs a computation."""
    required = required_packages()
    questions: list[Callable[[], Condition | list[Condition]]] = [
        lambda: gpu_condition(read_driver(shutil.which("nvidia-smi")), installed_torch()),
        *([computing_condition] if with_torch else []),
        lambda: python_condition(required),
        lambda: package_conditions(required),
        lambda: extra_conditions(required),
        machine.hub_condition,
        machine.hub_login_condition,
        machine.wandb_login_condition,
        machine.cores_condition,
        machine.memory_condition,
        machine.disk_conditions,
        machine.shared_memory_condition,
        machine.sandbox_condition,
    ]
    with ThreadPoolExecutor(max_workers=len(questions)) as pool:
        answers = [future.result() for future in [pool.submit(question) for question in questions]]
    return [one for answer in answers for one in (answer if isinstance(answer, list) else [answer])]
