"""A run that was stopped and resumed is the run that never stopped, bit for bit, also within a weight's schedule."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pyarrow.parquet
import pytest
import torch

from rlhf_cli.cli import main
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.runs.checkpoint_folders import problem_with
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.trainers import checkpoint_mixin
from tests.support.cut_runs import cut, events, goes_on_as, is_same, table

# A run that was stopped and went on is the run that never stopped: bit for bit, from every checkpoint.


UNEVEN = ["trainer.args.gradient_accumulation_steps=3", "trainer.args.max_steps=7"]
"""Steps of 3, 3 and 2 micro-batches an epoch: no window of four ends where a step does, but at the epoch's end."""


@pytest.mark.parametrize("step", [2, 3, 4, 7])
@pytest.mark.fault(7, 8)
def test_grpo_from_any_step(whole, workplace: Path, step: int) -> None:
    goes_on_as(whole(), step, workplace / "cut")


@pytest.mark.fault(7)
def test_rloo(whole, workplace: Path) -> None:
    goes_on_as(whole("trainer=rloo"), 3, workplace / "cut")


@pytest.mark.fault(7)
def test_where_no_step_ends_with_a_slice_of_the_rollout(whole, workplace: Path) -> None:
    goes_on_as(whole(*UNEVEN), 5, workplace / "cut")


def test_between_two_logs(whole, workplace: Path) -> None:
    """The means that are logged are of all steps since the last log, those before the stop among them."""
    goes_on_as(whole("trainer.args.logging_steps=3"), 5, workplace / "cut")


@pytest.mark.fault(9)
def test_with_a_reference_that_moves(whole, workplace: Path) -> None:
    moving = ("trainer.args.beta=0.5", "trainer.args.sync_ref_model=true", "trainer.args.ref_model_sync_steps=2")
    goes_on_as(whole(*moving), 5, workplace / "cut")


def test_the_run_it_is_compared_with_learns_and_shuffles(whole) -> None:
    """Without this, equality would say nothing: every step moves weights, every epoch has an order of its own."""
    run = whole()
    assert all(event["grad_norm"] > 0 for event in events(run))
    tables = [
        pyarrow.parquet.read_table(run.path / "completions" / f"completions_0000{step}.parquet") for step in (4, 8)
    ]
    first, second = (list(dict.fromkeys(table.to_pydict()["prompt"])) for table in tables)
    assert first != second


def test_a_log_in_the_middle_of_a_window_keeps_the_table_of_completions(whole, workplace: Path) -> None:
    run = whole()
    folder = cut(run, 5, workplace / "cut")
    assert main(["resume", str(folder.path)]) == 0
    for step in (5, 6, 8):
        assert {"correct", "format", "completion", "advantage"} <= table(run, step).keys()
        assert json.dumps(table(folder, step)) == json.dumps(table(run, step))  # as text: NaN is not equal to itself


@pytest.mark.parametrize(
    ("step", "lost"),
    [
        (2, "load_rollouts"),
        (5, "load_rollouts"),
        (4, "skip_epochs"),
    ],  # after step 4 the buffer is used up: only the order counts
)
@pytest.mark.fault(7, 8)
def test_negative_control_without_what_is_restored_the_model_is_another(
    whole, workplace: Path, monkeypatch: pytest.MonkeyPatch, step: int, lost: str
) -> None:
    monkeypatch.setattr(checkpoint_mixin, lost, lambda *_, **__: None)
    folder = cut(whole(), step, workplace / "cut")
    assert main(["resume", str(folder.path)]) == 0
    assert not is_same(folder, whole())


def test_a_used_up_rollout_is_not_in_the_checkpoint(whole) -> None:
    folder = whole().checkpoints
    states = {
        step: torch.load(folder / f"checkpoint-{step}" / "rollout-rank0.pt", weights_only=True) for step in (3, 4)
    }
    assert len(states[3]["inputs"]) == 4
    assert states[4]["inputs"] is None
    assert (states[3]["step"], states[4]["step"]) == (6, 8)


def test_every_checkpoint_of_a_run_verifies_and_nothing_else_is_left(whole) -> None:
    folder = whole().checkpoints
    assert [path.name for path in sorted(folder.iterdir())] == [f"checkpoint-{step}" for step in range(1, 9)]
    assert [problem_with(path) for path in folder.iterdir()] == [None] * 8


# A run that is stopped in the middle of a weight's schedule resumes with the correct weights.


STEPS = 8
SCHEDULES = (
    "rewards.correct.weight={start: 0.0, end: 3.0, steps: 6}",
    "rewards.format.weight={start: 2.0, end: -1.0, fraction: 0.75, shape: cosine}",
    "rewards.brevity.weight={start: 1.0, end: 0.25, steps: 5, shape: step}",
)
A_ROUND_A_STEP = ("trainer.args.steps_per_generation=2", "trainer.args.num_iterations=1")
"""Two micro-batches a round and two a step: rewards are weighed anew at every optimizer step."""


def by_hand(step: int) -> dict[str, float]:
    """While step s (0 is the first) of 8 is prepared, of the definitions in docs/how-to/rewards.md's first example:

    correct, linear over 6 steps: 0 + 3 s/6. format, half a cosine over 0.75 of 8 = 6 steps: 2 - 3 (1 - cos(pi s/6))/2.
    brevity, a step: 1 until s = 5. All at their end from there on.
    """
    passed = min(step / 6, 1.0)
    return {
        "correct": 3.0 * passed,
        "format": 2.0 - 1.5 * (1 - math.cos(math.pi * passed)),
        "brevity": 1.0 if step < 5 else 0.25,
    }


def logged(folder: RunFolder) -> list[dict[str, float]]:
    return [{name: event[f"rewards/{name}/weight"] for name in by_hand(0)} for event in events(folder)]


@pytest.fixture
def never_stopped(whole) -> RunFolder:
    run: RunFolder = whole(*SCHEDULES, *A_ROUND_A_STEP)
    return run


@pytest.mark.parametrize("step", [2, 5])
@pytest.mark.fault(9)
def test_weights_metrics_and_model_are_those_of_the_run_that_never_stopped(
    never_stopped: RunFolder, workplace: Path, step: int
) -> None:
    goes_on_as(never_stopped, step, workplace / "cut")  # every metric of every step, and the model, bit for bit
    found = logged(RunFolder(workplace / "cut"))
    assert found == [pytest.approx(by_hand(done), rel=1e-6, abs=1e-6) for done in range(STEPS)]


def test_in_the_middle_of_a_round_it_keeps_the_weight_that_the_round_was_scored_with(whole, workplace: Path) -> None:
    """Rounds of four optimizer steps: the second is scored at step 4, and what is left of the first is not again."""
    run = whole(*SCHEDULES)
    goes_on_as(run, 3, workplace / "cut")
    scored = [event for event in events(RunFolder(workplace / "cut")) if "rewards/correct/weight" in event]
    assert [event["rewards/correct/weight"] for event in scored] == pytest.approx([0.0, 2.0])


def test_control_a_schedule_that_begins_anew_is_seen(
    never_stopped: RunFolder, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = RewardStack.weights
    monkeypatch.setattr(RewardStack, "weights", lambda self, step, most: weights(self, max(step - 5, 0), most))
    folder = cut(never_stopped, 5, workplace / "cut")
    assert main(["resume", str(folder.path)]) == 0
    assert not is_same(folder, never_stopped)
    assert logged(folder) != logged(never_stopped)
