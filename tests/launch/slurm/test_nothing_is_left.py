"""The Slurm of the tests takes along what it has started, when it goes: nothing of it is seen on the machine later."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.launch.slurm.own_slurm import brought_up

pytestmark = [pytest.mark.slurm]


def of_slurm_in(folder: Path) -> list[str]:
    """The names of living processes in whose environment the folder stands."""

    def name(process: Path) -> str | None:
        try:
            return (process / "comm").read_text().strip() if str(folder).encode() in environment(process) else None
        except OSError:
            return None

    def environment(process: Path) -> bytes:
        return (process / "environ").read_bytes()

    return sorted(filter(None, (name(process) for process in Path("/proc").iterdir() if process.name.isdigit())))


def test_a_job_that_runs_ends_with_the_slurm_it_runs_in() -> None:
    own_slurm = contextmanager(brought_up)
    with own_slurm(1) as slurm:
        folder = Path(slurm["SLURM_CONF"]).parent
        words = ["sbatch", "--output=/dev/null", "--wrap", "sleep 600; sleep 600"]
        subprocess.run(words, env={**os.environ, **slurm}, check=True, capture_output=True)
        until = time.monotonic() + 60
        while "sleep" not in of_slurm_in(folder):
            assert time.monotonic() < until
            time.sleep(0.1)
        assert "slurmstepd" in of_slurm_in(folder)
    assert of_slurm_in(folder) == []
