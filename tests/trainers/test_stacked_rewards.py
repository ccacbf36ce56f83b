"""The reward stack inside real trainers: what TRL makes of it, and that a reward of weight 0 changes no bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_status import read_status
from tests.support.cut_runs import table
from tests.support.random_reward_model import save_random_reward_model
from tests.support.small_runs import PPO_SMALL
from tests.support.tolerances import ARITHMETIC

pytestmark = pytest.mark.whole

REWARDS = """
def a(completions, **kwargs):
    return [1.0, 0.0, 1.0, 0.0]

def b(completions, **kwargs):
    assert len(completions) == 2
    return [0.5, 0.1]
"""
GATED = [
    "+rewards.a={fn: './mine.py:a', trial: false}",
    "+rewards.b={fn: './mine.py:b', trial: false, weight: 2, gate: {by: a, at_least: 1.0, otherwise: zero}}",
]
ONE_GROUP = ["trainer.args.per_device_train_batch_size=4", "trainer.args.max_steps=1"]
DROP = ["~rewards.correct", "~rewards.format", "~rewards.brevity"]


def test_table_and_metrics_say_what_happened_to_each_row(train, workplace: Path) -> None:
    """a = 1, 0, 1, 0; b = 0.5, -, 0.1, - gated by a, of weight 2: totals 2, 0, 1.2, 0.

    The table row by row; metrics are raw where a reward applies, and add up.
    """
    (workplace / "mine.py").write_text(REWARDS)
    _, folder = train(*DROP, *ONE_GROUP, *GATED, "trainer.args.scale_rewards=none")
    rows = table(folder, 1)
    assert rows["advantage"] == pytest.approx([1.2, -0.8, 0.4, -0.8], **ARITHMETIC)
    assert rows["b"][0] == pytest.approx(0.5, **ARITHMETIC)
    assert rows["b"][1] is None  # never scored
    assert rows["b.effective"] == pytest.approx([0.5, 0.0, 0.1, 0.0], **ARITHMETIC)
    assert rows["b.weighted"] == pytest.approx([1.0, 0.0, 0.2, 0.0], **ARITHMETIC)
    assert rows["b.closed_by"] == [None, "a", None, "a"]
    event = read_metrics(folder.metrics)[0]
    for name, value in (("mean", 0.3), ("std", 0.4 / 2**0.5), ("effective_mean", 0.15), ("weighted_mean", 0.3)):
        assert event[f"rewards/b/{name}"] == pytest.approx(value, **ARITHMETIC)
    for name, value in (("open_fraction", 0.5), ("calls", 2), ("calls_saved", 2)):
        assert event[f"rewards/b/{name}"] == value
    assert event["reward"] == pytest.approx(0.8, **ARITHMETIC)
    shares = [event[f"rewards/{name}/advantage_share"] for name in "ab"]
    assert sum(shares) == pytest.approx(1.0, **ARITHMETIC)


@pytest.mark.parametrize("policy", ["exclude", "0.25", "raise"])
def test_a_failing_row_meets_its_policy(train, workplace: Path, policy: str) -> None:
    (workplace / "mine.py").write_text(
        "def picky(completion_ids, **kwargs):\n"
        "    if any(ids[0] % 2 for ids in completion_ids):\n        raise ValueError('odd first token')\n"
        "    return [1.0] * len(completion_ids)\n"
    )
    words = [f"rewards.mine.{word}" for word in ("fn=./mine.py:picky", "trial=false", f"on_error={policy}")]
    code, folder = train(*words)
    assert (code, read_status(folder).state) == ((1, "failed") if policy == "raise" else (0, "finished"))
    if code:
        return
    event = read_metrics(folder.metrics)[0]
    assert (errors := event["rewards/mine/errors"]) > 0
    assert event["rewards/mine/mean"] == 1.0
    kept = json.loads(folder.reward_errors.read_text().splitlines()[0])
    assert (kept["reward"], kept["error"]) == ("mine", "ValueError: odd first token")
    if policy == "0.25":
        assert event["rewards/mine/effective_mean"] == pytest.approx((0.25 * errors + (8 - errors)) / 8, **ARITHMETIC)
    else:
        assert event["rewards/mine/excluded"] == errors


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
    *DROP,
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
    """Negative control: the rows that only `w` scores do change the training once it has a weight."""
    (workplace / "mine.py").write_text(SOURCE)
    save_random_reward_model(workplace / "judge")
    watcher = "dense" if "trainer.dense=true" in words else "plain"

    def weights(name: str, *more: str) -> dict[str, torch.Tensor]:
        code, folder = train(*WORDS, *words, *more, name=name)
        assert code == 0
        return load_file(folder.model / "model.safetensors")

    alone = weights("alone")
    judge = ["+rewards.judge={model: ./judge, weight: 0}"] if not words else []
    watched = weights("watched", f"+rewards.w={{fn: './mine.py:{watcher}', weight: 0}}", *judge)
    assert all(torch.equal(watched[name], alone[name]) for name in alone)
    counted = weights("counted", f"+rewards.w={{fn: './mine.py:{watcher}', weight: 0.01}}")
    assert not all(torch.equal(counted[name], alone[name]) for name in alone)
