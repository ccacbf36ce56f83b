"""The experiment that sees a failure again: the one reward, called as it was in training."""

from __future__ import annotations

import pytest

from rlhf_cli.errors import ConfigError
from rlhf_cli.jobs.prepare import prepare, replayed
from rlhf_cli.runs.failure_capsules import Capsule
from rlhf_cli.trainers.assemble.stack_building import reward_stack

WORDS = [
    "+exp=quickstart",
    "rewards.brevity.gate={by: correct, at_least: 1}",
    "rewards.brevity.on_error=exclude",
    "aggregate=./mine.py:of_all_three",
]


def capsule(timeout_s: float | None = 900.0, reward: str = "brevity") -> Capsule:
    return Capsule(
        reward=reward,
        kind="KeyError",
        error="KeyError: 'seven'",
        traceback="",
        row=1,
        batch_row=3,
        rank=0,
        step=6,
        max_steps=9,
        epoch=None,
        scored_by="m:f",
        args={},
        on_error="exclude",
        timeout_s=timeout_s,
    )


@pytest.mark.parametrize(
    ("typed", "timeout_s", "expected"),
    [([], 900.0, 900.0), ([], None, None), (["rewards.brevity.timeout_s=5"], 900.0, 5.0)],
    ids=["as in training", "no limit", "another one typed"],
)
def test_the_call_is_that_of_training(typed: list[str], timeout_s: float | None, expected: float | None) -> None:
    """Its gates have done their work, whatever it fails with is shown, and it has the time it had: in `rlhf score` a
    time of `auto` is no limit otherwise.
    """
    experiment = prepare([*WORDS, *typed]).experiment
    (component,) = reward_stack(replayed(experiment, capsule(timeout_s)), device="cpu").components
    assert (component.name, component.gates, component.on_error) == ("brevity", (), "raise")
    assert component.timeout_s == expected
    assert replayed(experiment, capsule()).aggregate == "sum"


def test_another_experiment_is_refused() -> None:
    with pytest.raises(ConfigError, match="a failure of the reward 'other'"):
        replayed(prepare(WORDS).experiment, capsule(reward="other"))
