"""Runs whose rewards teach nothing end at the K-th round without a signal, and say which reward is to blame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf_cli.runs.run_status import read_status
from tests.support.small_runs import PPO_SMALL

ONLY = ["~rewards.correct", "~rewards.format", "~rewards.brevity"]
REWARDS = """
ROUNDS = []

def constant(completions, **_):
    return [0.7] * len(completions)

def first_token(completion_ids, **_):
    return [[1.0, *[0.0] * (len(ids) - 2), -0.5] if len(ids) > 1 else [0.5] for ids in completion_ids]

def either(completions, **_):
    '0 and 1 on the first two rows of a group of four, not on the others.'
    return [float(row % 4) if row % 4 < 2 else None for row in range(len(completions))]

def other(completions, **_):
    return [None if row % 4 == 1 else 1.0 for row in range(len(completions))]

def third_time(completions, **_):
    '''Tells rows apart in every third round: never five rounds in a row without a signal.'''
    ROUNDS.append(0)
    return [float(row) if len(ROUNDS) % 3 == 0 else 0.0 for row in range(len(completions))]
"""


@pytest.fixture
def mine(workplace: Path) -> None:
    (workplace / "mine.py").write_text(REWARDS)


@pytest.mark.parametrize("trainer", ["grpo", "ppo"])
@pytest.mark.fault(33)
def test_five_rounds(train: Any, mine: None, trainer: str, capsys: pytest.CaptureFixture[str]) -> None:
    """PPO's rounds are of two optimizer steps: the fifth begins with the ninth."""
    words = PPO_SMALL if trainer == "ppo" else []
    code, folder = train(*words, *ONLY, "+rewards.flat.fn=./mine.py:constant", "trainer.args.max_steps=20")
    assert (code, read_status(folder).state) == (1, "failed")
    said = capsys.readouterr().err
    assert "no signal in 5 rounds in a row: every reward was constant within its groups" in said
    assert f"steps 1 to {9 if trainer == 'ppo' else 5}," in said
    assert "flat: 0.7 on every row, weight 1" in said
    assert "Traceback" not in said
    assert read_status(folder).step == (8 if trainer == "ppo" else 4)  # of the fifth round no step is taken


def test_tokens_are_told_apart_where_totals_are_not(train: Any, mine: None) -> None:
    """Every row sums to 0.5, and its first token is worth more than its last: a signal where tokens are rewarded."""
    words = [*PPO_SMALL, *ONLY, "+rewards.first.fn=./mine.py:first_token", "trainer.args.max_steps=12"]
    assert train(*words, name="dense")[0] == 0
    assert train(*words, "trainer.dense=false", name="summed")[0] == 1


def test_rewards_of_which_one_is_left_out_where_the_other_scores(train: Any, mine: None) -> None:
    """Every total is 1, and RLOO compares 0 and 1 with each other: -1 and 1, a signal. Nothing else tells rows apart:
    the other reward is 1 wherever it applies.
    """
    both = ["+rewards.either.fn=./mine.py:either", "+rewards.other.fn=./mine.py:other", "trainer.args.max_steps=6"]
    assert train("trainer=rloo", *ONLY, *both, name="both")[0] == 0
    assert train("trainer=rloo", *ONLY, *both[1:], name="other")[0] == 1


def test_off_and_another_number(train: Any, mine: None) -> None:
    flat = [*ONLY, "+rewards.flat.fn=./mine.py:constant", "trainer.args.max_steps=6"]
    assert train(*flat, "guards.no_signal=off", name="off")[0] == 0
    code, folder = train(*flat, "guards.no_signal=2", name="two")
    assert (code, read_status(folder).step) == (1, 1)


def test_a_signal_now_and_then_is_enough(train: Any, mine: None) -> None:
    assert train(*ONLY, "+rewards.now.fn=./mine.py:third_time", "trainer.args.max_steps=8")[0] == 0


def test_a_policy_without_probabilities(train: Any, before_training: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Its weights are NaN when it is first asked: torch alone says `probability tensor contains either inf, nan`."""

    def spoil(trainer: Any) -> None:
        with torch.no_grad():
            trainer.model.get_input_embeddings().weight.fill_(torch.nan)

    before_training(spoil)
    code, folder = train()
    said = capsys.readouterr().err
    assert (code, read_status(folder).state) == (1, "failed")
    assert "the policy's answer is not finite: stopped before optimizer step 1" in said
    assert "there is no checkpoint of this run yet" in said
