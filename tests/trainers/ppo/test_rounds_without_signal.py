"""A round of PPO that teaches nothing moves nothing, and is seen by `rlhf why`.

The small model's answers are all cut off, its critic is 0 everywhere, and under truncation=bootstrap the critic's value
is all that a cut answer is worth. What remains is the rounding between two ways to compute one log-probability. A
reward per token without a return type shows itself in the first round: bootstrap's `replace` is then warned of.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_cli.analysis.diagnosis.logged import Finding
from rlhf_cli.analysis.diagnosis.run_diagnosis import diagnose
from tests.support.watched_critic import is_same, logged

pytestmark = pytest.mark.whole

ALL_CUT = ("truncation=bootstrap", "trainer.args.max_completion_length=2")
ONE_ROUND = "trainer.args.max_steps=2"


@pytest.mark.parametrize("where", ["reward", "loss"])
def test_no_weight_moves(watch, where: str) -> None:
    seen = watch(*ALL_CUT, ONE_ROUND, f"kl.where={where}")
    assert logged(seen.folder, "rewards/truncation/fraction")[0] == 1.0
    assert is_same(seen.policy[0], seen.policy[-1])
    assert is_same(seen.values[0], seen.values[-1])
    assert logged(seen.folder, "ppo/advantages_std") == [0.0]
    (found,) = [
        one
        for one in diagnose(seen.folder).diagnosis.findings
        if isinstance(one, Finding) and one.kind == "no_deviation"
    ]
    assert found.severity == "serious"
    assert "rewards/truncation/fraction" in [part.metric for part in found.evidence]
    assert found.changes[0].words == "trainer.args.max_completion_length=4"


def test_with_the_scores_every_weight_moves(watch) -> None:
    """Control: the same round, whose cut answers keep their scores."""
    seen = watch(*ALL_CUT, "truncation.mode=add", ONE_ROUND)
    assert not is_same(seen.policy[0], seen.policy[-1])
    assert not [one for one in diagnose(seen.folder).diagnosis.findings if one.kind == "no_deviation"]


SOURCE = """
def tokens(completions, completion_ids, **columns):
    return [[float(token % 3) for token in ids] for ids in completion_ids]
"""


@pytest.mark.parametrize(("words", "count"), [((), 1), (("truncation.mode=add",), 0)])
def test_rewards_by_token_are_warned_of_once_in_two_rounds(
    train_ppo, workplace: Path, words: tuple[str, ...], count: int
) -> None:
    (workplace / "mine.py").write_text(SOURCE)
    drop = ("~rewards.correct", "~rewards.format", "~rewards.brevity", "+rewards.tokens.fn=./mine.py:tokens")
    code, folder = train_ppo(*drop, "truncation=bootstrap", *words, "trainer.args.max_steps=4")
    assert code == 0
    assert folder.log.read_text().count("every reward is dense") == count
