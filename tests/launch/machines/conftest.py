"""What several files of this folder need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.machines.two_machines import TwoMachines, two_machines


@pytest.fixture
def machines(place: Path) -> Iterator[TwoMachines]:
    """A frozen run of two machines, on this one; what was started for it is ended."""
    machines = two_machines(place)
    yield machines
    machines.kill_all()
