"""A real Slurm of this one machine, brought up once for all tests of this folder and down after them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.slurm.own_slurm import brought_up


@pytest.fixture(scope="session")
def daemons() -> Iterator[dict[str, str]]:
    """The environment that points Slurm's commands at it."""
    yield from brought_up(1)


@pytest.fixture
def slurm(daemons: dict[str, str], place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The empty working directory of a user on the one node of a cluster."""
    for name, value in daemons.items():
        monkeypatch.setenv(name, value)
    return place
