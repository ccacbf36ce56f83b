"""Supervised fine-tuning, DPO, KTO and reward models that were stopped end as those that never were, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from rlhf_cli.cli import main
from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.run_folder import RunFolder
from tests.support.cut_runs import cut
from tests.trainers.small_stages import Stage, assert_same_weights

# 18 rows of 8: the third step ends an epoch, and the checkpoint of step 2 lies within one.
WORDS = (
    *("data.args.num_rows=20", "trainer.args.max_steps=5", "trainer.args.save_steps=2"),
    *("trainer.args.save_total_limit=null", "trainer.args.eval_strategy=no"),
)


def goes_on(never_stopped: RunFolder, stopped: RunFolder) -> None:
    assert stopped.last_checkpoint() == stopped.checkpoints / "checkpoint-2"
    assert main(["resume", str(stopped.path)]) == 0
    assert_same_weights(never_stopped.model, stopped.model)
    never, resumed = (series(read_metrics(folder.metrics), "loss") for folder in (never_stopped, stopped))
    assert resumed == never
    assert len(never[1]) == 5


@pytest.mark.parametrize(
    ("name", "model"), [("sft", []), ("kto", []), ("dpo", ["model.lora.r=2"]), ("reward", ["model.lora.r=2"])]
)
def test_a_run_that_was_killed(stage: Stage, workplace: Path, name: str, model: list[str]) -> None:
    _, whole = stage(name, *WORDS, *model, run="whole")
    goes_on(whole, cut(whole, 2, workplace / "runs" / f"toy_{name}" / "cut"))


def test_a_run_that_was_interrupted(stage: Stage, before_training: Callable[[Callable[[Any], None]], None]) -> None:
    class StopIn(TrainerCallback):  # type: ignore[misc]
        stops = False

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if self.stops and state.global_step == 3:
                raise KeyboardInterrupt

    callback = StopIn()
    before_training(lambda trainer: trainer.add_callback(callback))
    _, whole = stage("dpo", *WORDS, "model.lora.r=2", run="whole")
    callback.stops = True
    code, stopped = stage("dpo", *WORDS, "model.lora.r=2", run="stopped")
    assert code == 75
    callback.stops = False
    goes_on(whole, stopped)
