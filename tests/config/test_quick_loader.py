"""tests/support/quick_loader.py stands in for the composition in tests of training: here it is held against it."""

from __future__ import annotations

import dataclasses

import pytest

from rlhf_cli.config import compose as composition
from rlhf_cli.config.compose import Composed, compose, compose_frozen
from tests.support import small_reward_runs
from tests.support.quick_loader import QuickLoader
from tests.support.small_runs import PPO_SMALL, SMALL

pytestmark = pytest.mark.usefixtures("place", "by_hydra")
WORDS = [
    [],
    SMALL,
    [*SMALL, *PPO_SMALL, "run.name=one", "trainer.args.max_steps=5"],
    [*SMALL, *PPO_SMALL, "run.name=two"],
    [*SMALL, "~rewards.brevity", "rewards.mine={fn: 'x:y', weight: 2}", "reward@rewards.again=digits_only"],
    [*SMALL, "rewards.brevity.weight=0.5", "~rewards.brevity", "rewards.brevity={fn: 'x:y'}"],
    ["exp=toy_sft", "~data.eval", "data.eval.path=a.jsonl", "model={path: a, build: null}", "debug=overfit"],
    ["exp=quickstart", "run.root=${oc.env:HOME}/x", "track.notes='a: ${seed}'"],
    ["exp=toy_ppo", "~truncation", "truncation.penalty=1"],
    small_reward_runs.SMALL,
]


def both(monkeypatch: pytest.MonkeyPatch, function, *args) -> tuple[Composed, Composed, Composed]:
    """What is composed by the one, by the other, and by the other once it has a memory."""
    slow = function(*args)
    monkeypatch.setattr(composition, "NotingLoader", QuickLoader)
    return slow, function(*args), function(*args)


@pytest.mark.parametrize("words", WORDS)
def test_it_composes_what_the_other_does(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    """Everything: values, choices, where each came from, and what came from the environment."""
    slow, *quick = both(monkeypatch, compose, words)
    assert slow.origins.by_key
    for composed in quick:
        assert dataclasses.asdict(composed) == dataclasses.asdict(slow)
        assert str(composed.tree) == str(slow.tree)  # in the same order


@pytest.mark.parametrize("words", [[], ["seed=5", "~rewards.brevity"], ["truncation=none", "seed=2"]])
def test_it_composes_what_was_frozen(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    tree = compose(SMALL).tree
    slow, *quick = both(monkeypatch, compose_frozen, tree, None, words)
    for composed in quick:
        assert composed.tree == slow.tree
        assert (composed.choices, composed.origins) == (slow.choices, slow.origins)
