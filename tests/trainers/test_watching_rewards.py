"""Training with a reward of weight 0 beside the others ends in the same weights, bit for bit, for every trainer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.random_reward_model import save_random_reward_model
from tests.support.small_runs import PPO_SMALL

SOURCE = """
def a(completions, completion_ids, **columns):
    return [None if ids[0] % 2 else float(ids[0] % 7) for ids in completion_ids]

def b(completions, completion_ids, **columns):
    return [None if ids[0] % 3 else float(len(set(ids))) for ids in completion_ids]

def plain(completions, **columns):
    return [float(row) for row, _ in enumerate(completions)]

def dense(completions, completion_ids, **columns) -> list[list[float]]:
    return [[float(token % 5) for token in ids] for ids in completion_ids]
"""
WORDS = [
    *("~rewards.correct", "~rewards.format", "~rewards.brevity"),
    *("+rewards.a.fn=./mine.py:a", "+rewards.b.fn=./mine.py:b", "rewards.b.weight=0.3"),
    *("trainer.args.max_steps=2", "trainer.args.learning_rate=0.05", "guards.no_signal=off"),
]
TRAINERS = {
    "grpo": [],
    "rloo": ["trainer=rloo"],
    "ppo": PPO_SMALL,
    "gmpo": ["trainer=gmpo"],
    "grpo, token by token": ["trainer.dense=true"],
    "ppo, token by token": [*PPO_SMALL, "trainer.dense=true"],
    "grpo, z-scores": ["aggregate=normalize_then_sum"],
}


@pytest.mark.parametrize("words", TRAINERS.values(), ids=TRAINERS)
def test_the_weights_are_the_same(train, workplace: Path, words: list[str]) -> None:
    (workplace / "mine.py").write_text(SOURCE)
    watcher = "dense" if "trainer.dense=true" in words else "plain"

    def weights(name: str, *more: str) -> dict[str, torch.Tensor]:
        code, folder = train(*WORDS, *words, *more, name=name)
        assert code == 0
        return load_file(folder.model / "model.safetensors")

    alone = weights("alone")
    watched = weights("watched", f"+rewards.w={{fn: './mine.py:{watcher}', weight: 0}}")
    assert all(torch.equal(watched[name], alone[name]) for name in alone)
    # Negative control: the rows that only `w` scores do change the training once it has a weight.
    counted = weights("counted", f"+rewards.w={{fn: './mine.py:{watcher}', weight: 0.01}}")
    assert not all(torch.equal(counted[name], alone[name]) for name in alone)


def test_a_reward_model_watches_too(train, workplace: Path) -> None:
    (workplace / "mine.py").write_text(SOURCE)
    save_random_reward_model(workplace / "judge")
    found = []
    for name, more in {"alone": [], "watched": ["+rewards.w={model: ./judge, weight: 0}"]}.items():
        code, folder = train(*WORDS, *more, name=name)
        assert code == 0
        found.append(load_file(folder.model / "model.safetensors"))
    assert all(torch.equal(found[1][name], found[0][name]) for name in found[0])
