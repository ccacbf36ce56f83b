"""Runs that are stopped: during an evaluation, which saves the step before it first, and by a rule, as if finished."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import transformers

from rlhf_cli.cli import main
from rlhf_cli.runs.checkpoint_folders import problem_with
from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.provenance import weights_hash
from rlhf_cli.runs.run_folder import RunFolder, checkpoints_in
from rlhf_cli.runs.run_status import read_status
from tests.support.cut_runs import cut, events, is_same

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
    def ask(step: int) -> Asking:
        asking = Asking(step)
        left = [asking]
        before_training(lambda trainer: trainer.add_callback(left.pop()) if left else None)
        return asking

    return ask


def evaluated_at(folder: RunFolder) -> list[int]:
    return [event["step"] for event in read_metrics(folder.metrics) if "eval_runtime" in event]


FALLING = (
    "trainer.args.lr_scheduler_type=reduce_lr_on_plateau",
    "trainer.args.lr_scheduler_kwargs={patience: 0, threshold: 100.0}",
)
"""The learning rate falls at every evaluation."""


@pytest.mark.parametrize("words", [(), FALLING])
def test_the_step_before_it_is_saved_and_the_run_goes_on_as_if_it_had_not_been_stopped(
    words: tuple[str, ...], train, asked_at
) -> None:
    whole = train(*OF_POLICY, *words, name="whole")[1]
    asking = asked_at(2)
    code, folder = train(*OF_POLICY, *words)
    assert (code, asking.batches) == (75, 1)
    assert (read_status(folder).state, read_status(folder).reason) == ("preempted", "SIGTERM")
    assert [number for number, _ in checkpoints_in(folder.checkpoints)] == [2]
    assert problem_with(folder.checkpoints / "checkpoint-2") is None
    assert evaluated_at(folder) == []
    assert not any(name.startswith("eval_") for event in read_metrics(folder.metrics) for name in event)
    assert main(["resume", str(folder.path)]) == 0
    assert evaluated_at(folder) == evaluated_at(whole) == [2, 3]
    assert json.dumps(events(folder)) == json.dumps(events(whole))  # as text: NaN is not equal to itself
    assert weights_hash(folder.model) == weights_hash(whole.model)


@pytest.mark.parametrize(
    ("step", "code", "state", "saved", "evaluated"), [(0, 75, "preempted", [], []), (3, 0, "finished", [3], [2])]
)
def test_before_the_first_step_there_is_nothing_to_save_and_after_the_last_the_run_finishes_without_it(
    train, asked_at, step: int, code: int, state: str, saved: list[int], evaluated: list[int]
) -> None:
    """The training is complete then: the model is saved, and `rlhf eval` can evaluate it."""
    asking = asked_at(step)
    ended, folder = train(*OF_POLICY, f"trainer.args.eval_on_start={step == 0}")
    assert (ended, asking.batches, read_status(folder).state) == (code, 1, state)
    assert [number for number, _ in checkpoints_in(folder.checkpoints)] == saved
    assert evaluated_at(folder) == evaluated


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


BREVITY = "brevity > 0.5"
"""Answers of at most four tokens are 0.857 brief, or more: it holds in every log event."""
NO_GUARD = "guards.no_signal=off"


def test_it_is_saved_and_finished_at_the_step_that_fired(train, capsys: pytest.CaptureFixture[str]) -> None:
    """A rule for 2 log events in a row, one a step, fires at step 2 of 4."""
    words = [f"stop.when={BREVITY}", "stop.for=2", "trainer.args.max_steps=4", NO_GUARD]
    code, folder = train(*words)
    said = capsys.readouterr().out
    status = read_status(folder)
    assert code == 0
    assert (status.state, status.step, status.max_steps) == ("finished", 2, 4)
    assert status.last_checkpoint == "checkpoint-2"
    _, values = series(read_metrics(folder.metrics), "rewards/brevity/mean")
    assert status.reason == f"stopped by rule: brevity > 0.5: {values[0]:.4g}, {values[1]:.4g} at steps 1 to 2"
    assert (folder.model / "model.safetensors").is_file()
    assert said.count(status.reason) == 2  # when it fires, and in the panel at the end

    assert main(["status", "--json", str(folder.path)]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["state"], row["step"], row["reason"]) == ("finished", 2, status.reason)
    assert main(["why", str(folder.path)]) == 0
    assert status.reason.partition(": ")[2] in " ".join(capsys.readouterr().out.split())

    before = (folder.model / "model.safetensors").stat().st_mtime_ns
    assert main(["resume", str(folder.path)]) == 0
    said = capsys.readouterr().out
    assert "nothing to do: the run has finished, at step 2" in said
    assert status.reason in said
    assert "stop=null" in said
    assert train("run.resume=auto", *words)[0] == 0
    assert "nothing to do" in capsys.readouterr().out
    assert (folder.model / "model.safetensors").stat().st_mtime_ns == before

    never_stopped = train("trainer.args.max_steps=4", NO_GUARD, name="two")[1]
    assert main(["resume", str(folder.path), "stop=null"]) == 0
    after = read_status(folder)
    assert (after.state, after.step, after.reason) == ("finished", 4, None)
    assert is_same(folder, never_stopped)
    assert json.dumps(events(folder)) == json.dumps(events(never_stopped))


def test_the_count_goes_on_where_a_run_was_killed(train, tmp_path: Path) -> None:
    """For 3 in a row, killed after the checkpoint of step 2: it fires at step 3, the first after it goes on."""
    words = [f"stop.when={BREVITY}", "stop.for=3", "trainer.args.save_steps=1", "trainer.args.save_total_limit=null"]
    code, whole = train(*words, "trainer.args.max_steps=5", NO_GUARD)
    assert (code, read_status(whole).step) == (0, 3)
    killed = cut(whole, 2, tmp_path / "copy")
    assert main(["resume", str(killed.path)]) == 0
    assert read_status(killed).reason == read_status(whole).reason
    assert [event["step"] for event in read_metrics(killed.metrics) if "train_runtime" not in event] == [1, 2, 3]
    assert is_same(killed, whole)


def test_negative_control_one_that_does_not_hold_or_holds_at_the_last_step_changes_nothing(train) -> None:
    _, without = train("trainer.args.max_steps=3", NO_GUARD, name="two")
    _, folder = train("stop={a: {when: 'brevity < 0.5'}, b: {when: 'brevity > 0.5', for: 3}}", NO_GUARD)
    status = read_status(folder)
    assert (status.state, status.step, status.reason) == ("finished", 3, None)
    assert is_same(folder, without)
