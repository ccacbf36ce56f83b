"""`rlhf audit` finds every planted hole, with the reward that has it, and accuses no sound reward."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_cli.audit.attack import Plan, attack
from rlhf_cli.audit.audit_result import AuditResult
from rlhf_cli.jobs.prepare import prepare
from tests.support.planted_holes import HOLES, Stack
from tests.support.sound_rewards import SOUND

pytestmark = pytest.mark.usefixtures("place")


def audited(stack: Stack) -> AuditResult:
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in stack.rows))
    rewards = [f"rewards.{name}={{fn: '{fn}', weight: {weight}}}" for name, (fn, weight) in stack.rewards.items()]
    words = ["trainer=grpo", "model=tiny", "data=file", "data.path=rows.jsonl", *rewards, *stack.words]
    return attack(prepare(words).experiment, Plan(stack.rows), left_out={})


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
