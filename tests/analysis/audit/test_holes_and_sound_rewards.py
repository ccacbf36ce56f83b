"""`rlhf audit` finds every planted hole, with the reward that has it, and accuses no sound reward."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_cli.analysis.audit.attack import AuditPlan, attack
from rlhf_cli.analysis.audit.audit_result import AuditResult
from rlhf_cli.jobs.prepare import prepare
from tests.support.planted_holes import HOLES, SUMS, Stack
from tests.support.sound_rewards import SOUND

PENALTY = "truncation.penalty=0.5"
pytestmark = pytest.mark.usefixtures("place")


def audited(stack: Stack) -> AuditResult:
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in stack.rows))
    rewards = [f"rewards.{name}={{fn: '{fn}', weight: {weight}}}" for name, (fn, weight) in stack.rewards.items()]
    words = ["trainer=grpo", "model=tiny", "data=file", "data.path=rows.jsonl", *rewards, *stack.words]
    return attack(prepare(words).experiment, AuditPlan(stack.rows), left_out={})


@pytest.mark.parametrize("name", HOLES)
def test_a_hole_is_found_and_by_whom(name: str) -> None:
    found = audited(HOLES[name])
    assert found.is_sound is False or found.near
    assert HOLES[name].let_in in {*(kind.let_in for kind in [*found.holes, *found.near]), *found.blind}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if "program" in name else name for name in SOUND]
)
def test_a_sound_reward_is_not_accused(name: str) -> None:
    found = audited(SOUND[name])
    assert [(kind.name, kind.text, kind.share) for kind in [*found.holes, *found.near]] == []
    assert found.is_sound is True


def test_only_the_longest_answer_is_cut_off() -> None:
    """The right answer's reward is 1, nobody's else: what else is told apart is the penalty of 0.5."""
    found = audited(Stack(SOUND["the last number"].rewards, SUMS, words=("truncation=eos_penalty", PENALTY)))
    totals = {kind.name: kind.mean_total for kind in found.kinds}
    assert (totals["longest"], totals["empty"], found.gold_total) == (-0.5, 0.0, 1.0)
    (longest,) = [kind for kind in found.kinds if kind.name == "longest"]
    assert longest.contributions["truncation"].attack == -0.5


def test_what_a_reward_cannot_know_alone_is_left_out_and_said() -> None:
    """Divided by a deviation of its own rows, the total would be that of no training."""
    words = ("rewards.right.normalize=batch", "rewards.right.weight={start: 0.5, end: 1.0, steps: 9}")
    found = audited(Stack(SOUND["the last number"].rewards, SUMS, words=words))
    assert found.gold_total == 0.5
    assert [note.split(" is ")[0] for note in found.notes] == ["rewards.right.normalize", "rewards.right.weight"]
