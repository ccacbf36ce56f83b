"""Real runs, kept small: a model of a few thousand weights without a warm start, three steps, in this very process."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.runs.folder import RunFolder

SMALL = [
    "+exp=quickstart",
    "model.build.hidden_size=16",
    "model.build.num_layers=1",
    "model.build.warm_start=null",
    "trainer.args.max_steps=3",
    "trainer.args.per_device_train_batch_size=8",
    "trainer.args.num_generations=4",
    "trainer.args.max_completion_length=4",
    "data.args.num_rows=64",
    "launch=cpu",
    "track=none",
]


@pytest.fixture(scope="session")
def model_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def workplace(tmp_path: Path, model_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, as a newcomer has it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLHF_CACHE", str(model_cache))
    return tmp_path


@pytest.fixture
def train(workplace: Path):
    """`train(*overrides)` runs the small experiment under run.name=one; returns (exit code, run folder)."""

    def run(*overrides: str, name: str = "one") -> tuple[int, RunFolder]:
        code = main(["train", *SMALL, f"run.name={name}", *overrides])
        return code, RunFolder(workplace / "runs" / "quickstart" / name)

    return run
