"""Test that pyproject.toml allows exactly the tested versions."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

HERE = Path(__file__).parents[2]
PROJECT = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ELSEWHERE = {"torch": "2.13.0", "reasoning-gym": "0.1.25", "vllm": "0.30.0", "trackio": "0.43.0", "mlflow": "3.17.2"}
"""Installed by a target of the Makefile or tried by `make extras`, and not pinned in a file."""
TOOLS = "dev"
"""Installed only with constraints.txt."""


def pins(name: str) -> dict[str, Version]:
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    parts = [line.split("==") for line in lines if "==" in line and not line.startswith("#")]
    return {canonicalize_name(package): Version(version) for package, version in parts}


EVERY = [
    Requirement(line)
    for name, lines in [("", PROJECT["dependencies"]), *PROJECT["optional-dependencies"].items()]
    for line in lines
    if name != TOOLS
]
USUAL = pins("constraints.txt") | {name: Version(version) for name, version in ELSEWHERE.items()}


def too_new(version: Version) -> Version:
    """Return the next minor version after a tested one."""
    return Version(f"{version.release[0]}.{version.release[1] + 1}")


def allows_more(requirement: Requirement, highest: Version, lowest: Version | None) -> list[str]:
    """Return the untested versions that a requirement allows; `lowest` is None if only one version was tested."""
    ends = [version for version in (highest, lowest) if version is not None]
    found = [f"{requirement} refuses {version}" for version in ends if version not in requirement.specifier]
    if too_new(highest) in requirement.specifier:
        found.append(f"{requirement} allows more than {highest}, which was tested")
    if lowest is not None and "==" not in str(requirement.specifier):
        (least,) = [Version(part.version) for part in requirement.specifier if part.operator == ">="]
        if least < lowest and least.release[:2] != lowest.release[:2]:
            found.append(f"{requirement} allows less than {lowest}, which was tested")
    return found


@pytest.mark.parametrize("requirement", EVERY, ids=lambda requirement: requirement.name)
def test_both_bounds_are_versions_that_were_tested(requirement: Requirement) -> None:
    """The lowest is in constraints-low.txt, the highest in constraints-high.txt, if they differ from CI's."""
    name = canonicalize_name(requirement.name)
    assert name in USUAL, f"add the version of {name} that was tested to constraints.txt or ELSEWHERE"
    highest, lowest = (pins(f"constraints-{end}.txt").get(name, USUAL[name]) for end in ("high", "low"))
    lowest = None if name in ELSEWHERE else lowest
    assert allows_more(requirement, highest, lowest) == []


@pytest.mark.parametrize("line", ["numpy>=2", "numpy>=2,<3", "numpy>=1,<2.5", "numpy>=2,<2.4"])
def test_control_another_range_is_not_what_was_tested(line: str) -> None:
    assert allows_more(Requirement(line), Version("2.4.6"), Version("2.0.0"))


def test_high_versions_are_higher_and_low_ones_lower() -> None:
    usual = pins("constraints.txt")
    assert all(version > usual[name] for name, version in pins("constraints-high.txt").items())
    assert all(version < usual[name] for name, version in pins("constraints-low.txt").items())
