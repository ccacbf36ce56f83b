"""Fixtures of tests that run sweeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.runs.run_folder import RunFolder
from tests.support import machines
from tests.support.small_runs import SMALL


@pytest.fixture
def sweep(workplace: Path):
    """`sweep(*words)` sweeps the small experiment under run.name=swept; returns (exit code, sorted runs)."""

    def run(*words: str) -> tuple[int, list[RunFolder]]:
        code = main(["train", "-m", *SMALL, "run.name=swept", *words])
        folder = workplace / "runs" / "quickstart" / "swept"
        return code, [RunFolder(path.parent) for path in sorted(folder.glob("*/config.yaml"))]

    return run


@pytest.fixture
def have_gpus(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return `have_gpus(4)`, which makes nvidia-smi list 4 GPUs; their locks are in a temporary folder."""
    place = tmp_path_factory.mktemp("machine")
    monkeypatch.setenv("RLHF_GPU_LOCKS", str(place / "locks"))
    return machines.have_gpus(place, monkeypatch)
