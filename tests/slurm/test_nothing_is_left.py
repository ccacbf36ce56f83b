"""The Slurm of the tests takes along what it has started, when it goes: nothing of it is seen on the machine later."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from scripts.slurm.one_machine import bring_down, bring_up, missing

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
    if absent := missing():
        pytest.skip(f"not installed here: {', '.join(absent)} (apt-get install slurm-wlm munge)")
    folder = Path(tempfile.mkdtemp(prefix="rlhf-slurm-"))
    try:
        try:
            environment = {**os.environ, **bring_up(folder)}
        except RuntimeError as error:
            pytest.skip(f"no Slurm comes up here: {error}")
        words = ["sbatch", "--output=/dev/null", "--wrap", "sleep 600; sleep 600"]
        subprocess.run(words, env=environment, check=True, capture_output=True)
        until = time.monotonic() + 60
        while "sleep" not in of_slurm_in(folder):
            assert time.monotonic() < until
            time.sleep(0.1)
        assert "slurmstepd" in of_slurm_in(folder)
        bring_down(folder)
        assert of_slurm_in(folder) == []
    finally:
        bring_down(folder)
        shutil.rmtree(folder, ignore_errors=True)
