"""A run whose rows left their batches, killed and resumed, is the run that never stopped: bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.cli import main
from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.trainers.rollout_mixin import RolloutMixin
from tests.support.cut_runs import WINDOWS, goes_on_as

ANSWERS = [word for word in WINDOWS if not word.startswith("model.build.")] + [
    "trainer.args.max_completion_length=24",
    "trainer.args.num_iterations=1",
    "trainer.args.max_steps=4",
]
"""The shipped policy, which writes sums and ends: rounds of four micro-batches, two optimizer steps each."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, model_cache: Path) -> tuple[RunFolder, list[RolloutMixin]]:
    """A run, and its trainer."""
    place, trainers = tmp_path_factory.mktemp("whole"), list[RolloutMixin]()
    init = RolloutMixin.__init__

    def noted(self: RolloutMixin, *args: Any, **named: Any) -> None:
        init(self, *args, **named)
        trainers.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("RLHF_CACHE", str(model_cache))
        patch.setattr(RolloutMixin, "__init__", noted)
        assert main(["train", *ANSWERS, "run.name=whole"]) == 0
    return RunFolder(place / "runs" / "quickstart" / "whole"), trainers


def test_rows_left_their_batches(whole: tuple[RunFolder, list[RolloutMixin]]) -> None:
    """Without this, equality would say nothing."""
    run, (trainer,) = whole
    slots = trainer._generating.live.slots
    assert trainer.generation_mode.name == "live"
    longest = series(read_metrics(run.metrics), "completions/max_length")[1]
    assert slots.tokens < 0.8 * 16 * sum(longest)
    assert slots.decoded <= slots.tokens * 9 / 8


@pytest.mark.parametrize("step", [1, 2])
def test_goes_on_as_if_it_had_not_stopped(
    whole: tuple[RunFolder, list[RolloutMixin]], workplace: Path, step: int
) -> None:
    """In the middle of a round, whose kept probabilities lie in the checkpoint, and between two."""
    goes_on_as(whole[0], step, workplace / "cut")
