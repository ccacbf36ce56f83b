"""Rewards as a tree: a gated one below the one that gates it, whatever the order they are written in."""

from __future__ import annotations

from rlhf_cli.config.schema.reward_sections import Reward
from rlhf_cli.display.start_panel import reward_tree
from tests.support.terminal import drawn


def reward(*, by: str | None = None, weight: object = 1.0) -> Reward:
    gate = {"by": by, "at_least": 1} if by is not None else None
    return Reward.model_validate({"fn": "m:f", "weight": weight, "gate": gate})


def shown(width: int = 80, **rewards: Reward) -> list[str]:
    return drawn(reward_tree(rewards, {name: f"m:{name}" for name in rewards}), width)


def test_gated_rewards_stand_below_their_gate() -> None:
    lines = shown(
        brevity=reward(by="correct", weight=0.2),
        style=reward(weight=0.5),
        correct=reward(),
        depth=reward(by="brevity"),
        form=reward(by="correct"),
    )
    assert [line.split("  ")[0].rstrip() for line in lines[1:]] == [
        "style",
        "correct",
        "├ brevity",
        "│ └ depth",
        "└ form",
    ]
    assert lines[0].split() == ["reward", "weight", "only", "where", "scored", "by"]
    assert lines[3].split() == ["├", "brevity", "0.2", "correct", ">=", "1", "m:brevity"]


def test_without_a_gate_there_is_no_column_for_one() -> None:
    lines = shown(correct=reward(weight={"start": 0.0, "end": 1.0, "steps": 3}))
    assert lines[0].split() == ["reward", "weight", "scored", "by"]
    assert lines[1].split() == ["correct", "0", "to", "1", "m:correct"]


def test_every_reward_is_shown_once_even_in_a_circle() -> None:
    """A circle of gates is refused elsewhere; here it must not hang, nor lose a reward."""
    lines = shown(one=reward(by="two"), two=reward(by="one"))
    assert sorted(line.split()[-1] for line in lines[1:]) == ["m:one", "m:two"]
