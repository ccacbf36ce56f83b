"""What a run leaves does not grow with its length, and a run goes on from it as if everything had been kept."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from rlhf_cli.cli import main
from rlhf_cli.runs import recorder
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import read_json
from tests.support.cut_runs import cut, events, is_same

pytestmark = pytest.mark.whole


def steps(run: Path) -> list[int]:
    return sorted(int(file.stem.partition("_")[2]) for file in (run / "completions").glob("*.parquet"))


class Leftovers(TrainerCallback):
    """Finds what steps 2 and 3 leave to the garbage collector: everything in a cycle."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.num_ignored = 0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 1:
            self.num_ignored = gc.get_freeze_count()
            gc.collect()
            gc.disable()
        elif state.global_step == 3:
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            gc.set_debug(0)
            self.found = [type(one).__name__ for one in gc.garbage]
            gc.garbage.clear()
            gc.enable()


@pytest.mark.parametrize("trainer", ["grpo", "ppo"])
def test_no_tensor_of_a_step_and_no_class_waits_for_the_garbage_collector(
    train, train_ppo, before_training, freezes: None, trainer: str
) -> None:
    """In a process with half a million objects, Python collects the old ones after thousands of steps."""
    leftovers = Leftovers()
    before_training(lambda made: made.add_callback(leftovers))
    code, _ = (train_ppo if trainer == "ppo" else train)("trainer.args.max_steps=4")
    assert code == 0
    assert leftovers.found, "nothing was looked at"
    assert leftovers.num_ignored > 100_000  # what was imported, and is the collector's again after the run
    assert gc.get_freeze_count() == 0
    assert not {"Tensor", "frame", "type"} & set(leftovers.found)
    assert len(leftovers.found) < 600  # closures of the standard library's JSON encoder


@pytest.fixture
def kept_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_KEPT_LOGS", 2)


def test_a_run_that_kept_little_goes_on_as_one_that_kept_all(train, tmp_path: Path, kept_short: None) -> None:
    """Bit for bit, from a checkpoint whose history is short, with tables removed around it."""
    long = ["trainer.args.max_steps=22", "trainer.args.save_steps=7", "trainer.args.save_total_limit=null"]
    code, everything = train(*long, "run.keep_completions.last=all", name="all")
    assert code == 0
    assert steps(everything.path) == list(range(1, 23))
    code, little = train(*long, "run.keep_completions.last=3", "run.keep_completions.every=8", name="little")
    assert code == 0
    assert steps(little.path) == [1, 8, 16, 20, 21, 22]
    assert len(read_json(little.checkpoints / "checkpoint-21" / "trainer_state.json")["log_history"]) <= 5
    assert len([event for event in read_metrics(little.metrics) if "reward" in event]) == 22
    stopped = cut(little, 14, tmp_path / "stopped")
    assert main(["resume", str(stopped.path)]) == 0
    assert is_same(stopped, everything)
    assert events(stopped) == events(everything)
    assert steps(stopped.path) == [1, 8, 16, 20, 21, 22]
