"""A run that is stopped in the middle of a weight's schedule resumes with the correct weights."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.runs.run_folder import RunFolder
from tests.support.cut_runs import cut, events, goes_on_as, is_same

STEPS = 8
SCHEDULES = (
    "rewards.correct.weight={start: 0.0, end: 3.0, steps: 6}",
    "rewards.format.weight={start: 2.0, end: -1.0, fraction: 0.75, shape: cosine}",
    "rewards.brevity.weight={start: 1.0, end: 0.25, steps: 5, shape: step}",
)
A_ROUND_A_STEP = ("trainer.args.steps_per_generation=2", "trainer.args.num_iterations=1")
"""Two micro-batches a round and two a step: rewards are weighed anew at every optimizer step."""


def by_hand(step: int) -> dict[str, float]:
    """While step s (0 is the first) of 8 is prepared, of the definitions in docs/rewards.md's first example:

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
