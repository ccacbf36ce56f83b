"""Being asked to stop during an evaluation breaks it off between two batches: the step before it is saved first."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest
import transformers

from rlhf_cli.cli import main
from rlhf_cli.runs.checkpoint_folders import problem_with
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.provenance import weights_hash
from rlhf_cli.runs.run_folder import RunFolder, checkpoints_in
from rlhf_cli.runs.run_status import read_status
from tests.support.cut_runs import events

pytestmark = pytest.mark.whole

EVALUATE = [
    *("data.eval.fraction=0.5", "trainer.args.eval_strategy=steps", "trainer.args.per_device_eval_batch_size=4"),
    *("trainer.args.save_steps=100", "trainer.args.save_total_limit=1"),
]
OF_POLICY = [*EVALUATE, "trainer.args.eval_steps=2", "trainer.args.num_generations_eval=1"]


class Asking(transformers.TrainerCallback):
    """Sends SIGTERM to this process after the first batch of the evaluation at `step`; counts the batches there."""

    def __init__(self, step: int) -> None:
        self.step, self.batches = step, 0

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            self.batches += 1
            if self.batches == 1:
                os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def asked_at(before_training):
    """`asked_at(step)`: returns the callback that asks, of the next trainer alone."""

    def ask(step: int) -> Asking:
        asking = Asking(step)
        left = [asking]
        before_training(lambda trainer: trainer.add_callback(left.pop()) if left else None)
        return asking

    return ask


def evaluated_at(folder: RunFolder) -> list[int]:
    return [event["step"] for event in read_metrics(folder.metrics) if "eval_runtime" in event]


def has_saved(folder: RunFolder, step: int) -> None:
    assert (read_status(folder).state, read_status(folder).reason) == ("preempted", "SIGTERM")
    assert [number for number, _ in checkpoints_in(folder.checkpoints)] == [step]
    assert problem_with(folder.checkpoints / f"checkpoint-{step}") is None


FALLING = (
    "trainer.args.lr_scheduler_type=reduce_lr_on_plateau",
    "trainer.args.lr_scheduler_kwargs={patience: 0, threshold: 100.0}",
)
"""The learning rate falls at every evaluation."""


@pytest.mark.parametrize("words", [(), FALLING], ids=["", "which the learning rate follows"])
def test_the_step_before_it_is_saved_and_the_run_goes_on_as_if_it_had_not_been_stopped(
    words: tuple[str, ...], train, asked_at
) -> None:
    whole = train(*OF_POLICY, *words, name="whole")[1]
    asking = asked_at(2)
    code, folder = train(*OF_POLICY, *words)
    assert (code, asking.batches) == (75, 1)
    has_saved(folder, 2)
    assert evaluated_at(folder) == []
    assert not any(name.startswith("eval_") for event in read_metrics(folder.metrics) for name in event)
    assert main(["resume", str(folder.path)]) == 0
    assert evaluated_at(folder) == evaluated_at(whole) == [2, 3]
    assert json.dumps(events(folder)) == json.dumps(events(whole))  # as text: NaN is not equal to itself
    assert weights_hash(folder.model) == weights_hash(whole.model)


def test_before_the_first_step_there_is_nothing_to_save(train, asked_at) -> None:
    asking = asked_at(0)
    code, folder = train(*OF_POLICY, "trainer.args.eval_on_start=true")
    assert (code, asking.batches, read_status(folder).state) == (75, 1, "preempted")
    assert checkpoints_in(folder.checkpoints) == []


def test_evaluations_that_are_turned_off_are_not_made_up(train, asked_at) -> None:
    asked_at(2)
    _, folder = train(*OF_POLICY)
    assert main(["resume", str(folder.path), "trainer.args.eval_strategy='no'"]) == 0
    assert evaluated_at(folder) == []


def test_a_rule_that_the_evaluation_meets_ends_the_resumed_run_at_once(train, asked_at) -> None:
    rule = "stop={when: 'eval_reward > -100'}"
    whole = train(*OF_POLICY, rule, name="whole")[1]
    asked_at(2)
    _, folder = train(*OF_POLICY, rule)
    assert main(["resume", str(folder.path)]) == 0
    assert read_status(folder).step == read_status(whole).step == 2
    assert weights_hash(folder.model) == weights_hash(whole.model)


def test_after_the_last_step_the_run_finishes_without_it(train, asked_at) -> None:
    """The training is complete: the model is saved, and `rlhf eval` can evaluate it."""
    asking = asked_at(3)
    code, folder = train(*OF_POLICY)
    assert (code, asking.batches, read_status(folder).state) == (0, 1, "finished")
    assert [number for number, _ in checkpoints_in(folder.checkpoints)] == [3]
    assert evaluated_at(folder) == [2]
