"""Which installed versions fit: by PEP 440, against ranges written here, and those of pyproject.toml as they are."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from packaging.specifiers import SpecifierSet

from rlhf_cli.project.doctor.examination import (
    RequiredPackages,
    extra_conditions,
    package_conditions,
    required_by_metadata,
    required_packages,
)
from rlhf_cli.project.doctor.machine import State, can_train

LINES = [
    "trl<1.17,>=1.16",
    "numpy>=2",
    "torch>=2.13",
    "transformers>=5",
    "math-verify>=0.9; extra == 'math'",
    "optuna<6,>=5; extra == 'search'",
    "pytest>=9; extra == 'dev'",
    "winloop; sys_platform == 'win32'",
]
HERE = {"trl": "1.16.3", "numpy": "2.4.0", "torch": "2.13.0+cu130", "transformers": "5.23.0", "optuna": "5.0.0"}


def wants() -> RequiredPackages:
    return required_by_metadata(">=3.11", LINES, ["math", "search", "dev"])


def states(versions: Mapping[str, str]) -> dict[str, State]:
    conditions = [*package_conditions(wants(), versions.get), *extra_conditions(wants(), versions.get)]
    return {condition.name: condition.state for condition in conditions}


def test_what_fits_is_one_line_and_extras_are_told_apart() -> None:
    assert states(HERE) == {"needed packages": State.OK, "math": State.MISSING, "search": State.OK}


@pytest.mark.parametrize(
    ("change", "name", "state", "prevents"),
    [
        ({"trl": "1.17.0"}, "trl", State.UNFIT, True),
        ({"trl": "1.15.9"}, "trl", State.UNFIT, True),
        ({"trl": None}, "trl", State.MISSING, True),
        ({"optuna": "4.9"}, "search", State.UNFIT, False),
        ({"optuna": None}, "search", State.MISSING, False),
    ],
)
def test_what_does_not_fit_is_named_with_what_to_type(
    change: dict[str, str | None], name: str, state: State, prevents: bool
) -> None:
    versions = {package: version for package, version in {**HERE, **change}.items() if version is not None}
    assert states(versions)[name] == state
    conditions = [*package_conditions(wants(), versions.get), *extra_conditions(wants(), versions.get)]
    (one,) = [condition for condition in conditions if condition.name == name]
    assert one.fix in ("pip install 'trl<1.17,>=1.16'", "pip install 'rlhf-cli[search]'")
    assert can_train(conditions) is not prevents


def test_a_development_version_is_judged_by_where_it_lies() -> None:
    """PEP 440: 1.16.1.dev0 lies between 1.16 and 1.17, and <1.17 leaves out what leads up to 1.17 itself."""
    assert states({**HERE, "trl": "1.16.1.dev0"})["needed packages"] == State.OK
    assert states({**HERE, "trl": "1.17.0.dev0"})["trl"] == State.UNFIT


def test_extras_are_told_apart_by_their_markers() -> None:
    known = required_packages()
    assert len(known.packages) > 20
    assert {"math", "search"} <= set(known.extras)
    lines = ["numpy>=2", "math-verify>=0.9; extra == 'math'"]
    built = required_by_metadata(">=3.11", lines, ["math"])
    assert [one.name for one in built.packages] == ["numpy"]
    assert [(one.name, one.specifier) for one in built.extras["math"]] == [("math-verify", SpecifierSet(">=0.9"))]


def test_where_the_tests_run_training_is_possible() -> None:
    assert can_train(package_conditions(required_packages()))
