"""Runs that never stopped, made once for all tests of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.runs.run_folder import RunFolder
from tests.support.cut_runs import WINDOWS
from tests.trainers.small_stages import SMALL_STAGE, TINY, Stage


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, model_cache: Path):
    """`whole(*overrides)` is a run that never stopped, made once a set of overrides."""
    made: dict[tuple[str, ...], RunFolder] = {}

    def run(*overrides: str) -> RunFolder:
        if overrides not in made:
            place = tmp_path_factory.mktemp("whole")
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(place)
                patch.setenv("RLHF_CACHE", str(model_cache))
                assert main(["train", *WINDOWS, *overrides, "run.name=whole"]) == 0
            made[overrides] = RunFolder(place / "runs" / "quickstart" / "whole")
        return made[overrides]

    return run


@pytest.fixture
def stage(workplace: Path) -> Stage:
    """`stage("sft", ...)` runs toy_sft, small, under run.name=one; returns (exit code, run folder)."""

    def run(name: str, *words: str, run: str = "one", model: list[str] = TINY) -> tuple[int, RunFolder]:
        code = main(["train", f"+exp=toy_{name}", *model, *SMALL_STAGE, f"run.name={run}", *words])
        return code, RunFolder(workplace / "runs" / f"toy_{name}" / run)

    return run
