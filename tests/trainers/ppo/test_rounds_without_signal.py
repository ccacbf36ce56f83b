"""A round of PPO that teaches nothing moves nothing, ends the run if it lasts, and is seen by `rlhf why`.

The small model's answers are all cut off, its critic is 0 everywhere, and under truncation=bootstrap the critic's value
is all that a cut answer is worth. What remains is the rounding between two ways to compute one log-probability. A
reward per token without a return type shows itself in the first round: bootstrap's `replace` is then warned of.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rlhf_cli.algorithms.ppo import Ppo, Rollout
from rlhf_cli.analysis.diagnosis.logged import Finding
from rlhf_cli.analysis.diagnosis.run_diagnosis import diagnose
from rlhf_cli.cli import main
from rlhf_cli.runs.run_status import read_status
from tests.support.cut_runs import cut
from tests.support.watched_critic import is_same, logged

pytestmark = pytest.mark.whole

ALL_CUT = ("truncation=bootstrap", "trainer.args.max_completion_length=2")
SAVED = ("trainer.args.save_steps=1", "trainer.args.save_total_limit=null")
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


def test_the_guard_ends_a_run_of_such_rounds_and_names_the_cause(train_ppo) -> None:
    code, folder = train_ppo(*ALL_CUT, "trainer.args.max_steps=8", "guards.no_signal=2")
    status = read_status(folder)
    assert code == 1
    assert status.step == 2  # the second round is not learned from
    assert status.reason is not None
    assert "every completion was truncated, and the critic's value" in status.reason
    assert "truncation=eos_penalty" in status.reason


def test_a_resumed_run_ends_in_the_same_round(train_ppo, tmp_path: Path) -> None:
    """Two steps a round; a run that is resumed after the first round counts it as well."""
    _, folder = train_ppo(*ALL_CUT, "trainer.args.max_steps=8", "guards.no_signal=3", *SAVED)
    rest = cut(folder, 2, tmp_path / "cut")
    assert main(["resume", str(rest.path)]) == 1
    assert read_status(rest).step == read_status(folder).step == 4


ROUND = Rollout(
    is_action=torch.tensor([[True, True], [True, False]]),
    scores=torch.zeros(1, 2, 2),
    values=torch.zeros(2, 2),
    last_values=torch.zeros(2),
    is_bootstrapped=torch.tensor([True, True]),
    logps=torch.tensor([[-1.0, -2.0], [-3.0, 0.0]]),
    ref_logps=torch.tensor([[-1.0, -2.0], [-3.0, 0.0]]) + 3e-6,
)
KL = 0.05


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"ref_logps": torch.full((2, 2), -2.0)}, False),  # the policy has left its reference
        ({"scores": torch.tensor([[[0.0, 1e-3], [0.0, 0.0]]])}, False),  # a small score is one
        ({"last_values": torch.tensor([0.0, torch.nan])}, False),  # left to the guard
    ],
)
def test_what_is_rounding(changed: dict[str, torch.Tensor], expected: bool) -> None:
    found = Ppo().advantages(replace(ROUND, **changed), KL, lambda sums: sums)
    assert found.is_rounding is expected
    assert bool((found.used == 0).all()) is expected


@pytest.mark.parametrize(("apart", "expected"), [(1.2e-5, True), (3e-5, False)])
def test_what_is_rounding_is_measured_by_the_largest_score(apart: float, expected: bool) -> None:
    """Two rows of one token score 1 and 1 + `apart`, in two components: each is `apart` / 2 from their mean."""
    one, other = torch.tensor([[0.5, 0.0], [0.5, 0.0]]), torch.tensor([[0.5, 0.0], [0.5 + apart, 0.0]])
    nearly_alike = replace(
        ROUND,
        is_action=torch.tensor([[True, False], [True, False]]),
        scores=torch.stack([one, other]),
        is_bootstrapped=torch.tensor([False, False]),
        ref_logps=ROUND.logps,
    )
    assert Ppo().advantages(nearly_alike, KL, lambda sums: sums).is_rounding is expected


def test_equal_advantages_are_rounding_only_if_they_are_whitened() -> None:
    """One token a row and the same score: whitened they are 0, else each is 1. The critic learns it either way."""
    alike = replace(
        ROUND,
        is_action=torch.tensor([[True, False], [True, False]]),
        scores=torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]),
        is_bootstrapped=torch.tensor([False, False]),
    )
    for whitens in (True, False):
        found = Ppo(whiten_advantages=whitens).advantages(alike, KL, lambda sums: sums)
        assert found.is_rounding is whitens
        assert found.returns[:, 0].tolist() == pytest.approx([1.0, 1.0])


SOURCE = """
def tokens(completions, completion_ids, **columns):
    return [[float(token % 3) for token in ids] for ids in completion_ids]

def plain(completions, **columns):
    return [float(len(text)) for text in completions]
"""
DENSE = "+rewards.tokens.fn=./mine.py:tokens"
WATCHED = "+rewards.plain={fn: './mine.py:plain', weight: 0}"
COUNTED = "+rewards.plain={fn: './mine.py:plain', weight: 1}"


@pytest.mark.parametrize(
    ("words", "count"),
    [((DENSE,), 1), ((DENSE, WATCHED), 1), ((DENSE, COUNTED), 0), ((COUNTED,), 0), ((DENSE, "truncation.mode=add"), 0)],
    ids=str,
)
def test_it_is_warned_of_once(train_ppo, workplace: Path, words: tuple[str, ...], count: int) -> None:
    (workplace / "mine.py").write_text(SOURCE)
    drop = ("~rewards.correct", "~rewards.format", "~rewards.brevity")
    code, folder = train_ppo(*drop, "truncation=bootstrap", *words)
    assert code == 0
    assert folder.log.read_text().count("every reward is dense") == count
