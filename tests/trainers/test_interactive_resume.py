"""A run with tools, an environment and a filter of groups that is stopped in the middle of a round, and resumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.runs.run_folder import RunFolder
from tests.support.cut_runs import cut, events, is_same
from tests.support.small_runs import PPO_SMALL

MINE = '''
import random

class Dice:
    """A number that the rollout cannot see."""

    def reset(self, **row):
        self.luck = random.random()

    def roll(self, sides: int) -> int:
        """Roll.

        Args:
            sides: How many.
        """
        self.luck = random.random()
        return random.randint(1, int(sides))

    def get_reward(self):
        return self.luck
'''
WORDS = [
    *("+exp=toy_calculator", "launch=cpu", "track=none", "run.name=one", "expect=[]"),
    *("environment.class=./mine.py:Dice", "rewards.luck={environment: get_reward, weight: 0.1}"),
    *("trainer.args.per_device_train_batch_size=4", "trainer.args.num_generations=4", "trainer.args.max_steps=6"),
    *("trainer.args.steps_per_generation=4", "trainer.args.gradient_accumulation_steps=2", "guards.no_signal=off"),
    *("trainer.args.save_steps=1", "trainer.args.save_total_limit=null", "trainer.args.log_completions=true"),
]
"""Two steps of training a round, three rounds: the odd checkpoints are in the middle of one."""
FILTER = ["sampling.keep_groups={by: correct, tries: 3}"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [FILTER, PPO_SMALL, [*FILTER, "launch.processes=2"]], ids=["grpo", "ppo", "grpo, two processes"]
)
def test_resumed_in_mid_round_it_is_the_run_that_never_stopped(workplace: Path, words: list[str]) -> None:
    (workplace / "mine.py").write_text(MINE)
    assert main(["train", *words, *WORDS]) == 0
    whole = RunFolder(workplace / "runs" / "toy_calculator" / "one")
    logged = events(whole)
    assert sum(event["tools/add/calls"] for event in logged if "tools/add/calls" in event) > 0
    if words[0] == FILTER[0]:
        assert max(event.get("sampling/draws", 0) for event in logged) > 1
    rest = cut(whole, 3, workplace / "cut")
    assert main(["resume", str(rest.path)]) == 0
    assert json.dumps(events(rest)) == json.dumps(logged)
    assert is_same(rest, whole)
