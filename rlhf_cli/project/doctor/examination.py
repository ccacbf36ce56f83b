"""Run all examinations, the installed packages among them."""

from __future__ import annotations

import importlib.metadata
import platform
import tomllib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from rlhf_cli.project.doctor import machine
from rlhf_cli.project.doctor import machine as machine_limits
from rlhf_cli.project.doctor import machine as tools_around
from rlhf_cli.project.doctor.machine import Condition, State
from rlhf_cli.project.doctor.torch_build import (
    computing_condition,
    gpu_condition,
    installed_torch,
    nvidia_smi,
    read_driver,
)

_DISTRIBUTION = "rlhf-cli"
_LARGE = ("torch", "trl", "transformers")
_FOR_US = ("dev",)
"""Extras for developers of this package."""

_SAYS = {
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

Installed = Callable[[str], str | None]
"""Maps a package to its version, or None if it is not installed."""


@dataclass(frozen=True)
class Wanted:
    """This package's requirements: a range of Python versions, packages, and extras by name."""

    python: str
    packages: tuple[Requirement, ...]
    extras: Mapping[str, tuple[Requirement, ...]]


def wanted() -> Wanted:
    """Return the requirements from pyproject.toml in a checkout, where metadata may be outdated, else from the
    metadata.
    """
    file = Path(__file__).resolve().parents[3] / "pyproject.toml"
    if file.is_file():
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        extras = project.get("optional-dependencies", {})
        return Wanted(
            project["requires-python"],
            _requirements(project["dependencies"]),
            {name: _requirements(lines) for name, lines in extras.items()},
        )
    metadata = importlib.metadata.metadata(_DISTRIBUTION)
    lines = importlib.metadata.requires(_DISTRIBUTION) or []
    return wanted_by_metadata(metadata["Requires-Python"] or "", lines, metadata.get_all("Provides-Extra") or [])


def wanted_by_metadata(python: str, lines: Iterable[str], extras: Iterable[str]) -> Wanted:
    """Return the requirements in an installed package's metadata; `lines` have markers like `; extra == 'math'`."""
    every = _requirements(lines)
    needed = tuple(one for one in every if _applies(one, ""))
    return Wanted(
        python,
        needed,
        {name: tuple(one for one in every if _applies(one, name) and one not in needed) for name in extras},
    )


def version_of(package: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def python_condition(wants: Wanted, version: str | None = None) -> Condition:
    """Return whether this Python's version is supported."""
    version = version or platform.python_version()
    fits = version in SpecifierSet(wants.python)
    found = f"{version}, {wants.python} is wanted"
    fix = None if fits else f"an environment with Python {wants.python}"
    return Condition("packages", "Python", State.OK if fits else State.UNFIT, found, fix, is_needed=True)


def package_conditions(wants: Wanted, installed: Installed = version_of) -> list[Condition]:
    """Return a condition per required package that is missing or incompatible, else one for all of them."""
    wrong = _misfits("packages", wants.packages, installed, is_needed=True)
    if wrong:
        return wrong
    versions = ", ".join(f"{name} {installed(name)}" for name in _LARGE)
    found = f"all {len(wants.packages)} fit: {versions}"
    return [Condition("packages", "needed packages", State.OK, found, is_needed=True)]


def extra_conditions(wants: Wanted, installed: Installed = version_of) -> list[Condition]:
    """Return a condition per extra: installed, missing, or incompatible. No extra is required."""
    conditions = []
    for name, requirements in wants.extras.items():
        if name in _FOR_US:
            continue
        what = _SAYS.get(name, "")
        versions = {one.name: installed(one.name) for one in requirements}
        install = f"pip install '{_DISTRIBUTION}[{name}]'"
        if not all(versions.values()):
            conditions.append(Condition("extras", name, State.MISSING, what, install))
        elif wrong := _misfits("extras", requirements, installed, is_needed=False):
            found = f"{what}: {'; '.join(f'{one.name} {one.found}' for one in wrong)}"
            conditions.append(Condition("extras", name, State.UNFIT, found, install))
        else:
            there = ", ".join(f"{package} {version}" for package, version in versions.items())
            conditions.append(Condition("extras", name, State.OK, f"{what}: {there}"))
    return conditions


def _misfits(
    area: str, requirements: Iterable[Requirement], installed: Installed, *, is_needed: bool
) -> list[Condition]:
    conditions = []
    for one in requirements:
        version, fix = installed(one.name), f"pip install '{one.name}{one.specifier}'"
        if version is None:
            found = f"not installed, {one.specifier} is wanted"
            conditions.append(Condition(area, one.name, State.MISSING, found, fix, is_needed))
        elif not one.specifier.contains(version, prereleases=True):
            found = f"{version}, {one.specifier} is wanted"
            conditions.append(Condition(area, one.name, State.UNFIT, found, fix, is_needed))
    return conditions


def _requirements(lines: Iterable[str]) -> tuple[Requirement, ...]:
    return tuple(Requirement(line) for line in lines)


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


_AMD = Path("/dev/kfd")


def examine(*, with_torch: bool) -> list[Condition]:
    """Return all conditions, in the order of the table; `with_torch` also imports torch and runs a computation."""
    wants = wanted()
    questions: list[Callable[[], Condition | list[Condition]]] = [
        lambda: gpu_condition(read_driver(nvidia_smi()), installed_torch(), has_amd=_AMD.exists()),
        *([computing_condition] if with_torch else []),
        lambda: python_condition(wants),
        lambda: package_conditions(wants),
        lambda: extra_conditions(wants),
        machine.hub_condition,
        machine.hub_login_condition,
        machine.wandb_login_condition,
        machine_limits.cores_condition,
        machine_limits.memory_condition,
        machine_limits.disk_conditions,
        machine_limits.shared_memory_condition,
        tools_around.sandbox_condition,
        tools_around.slurm_condition,
        tools_around.git_condition,
        tools_around.terminal_condition,
    ]
    with ThreadPoolExecutor(max_workers=len(questions)) as pool:
        answers = [future.result() for future in [pool.submit(question) for question in questions]]
    return [one for answer in answers for one in (answer if isinstance(answer, list) else [answer])]
