"""Faults planted in simulated runs, two or more for each kind of finding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tests.analysis.diagnosis.simulated_logs import LIMIT, World

GRPO, PPO = World(), World(is_ppo=True, events=60)
_THREE = {"correct": 1.0, "format": 0.5, "brevity": 1.5}
_TWO = {"correct": 1.0, "format": 0.5}


def _with(world: World, name: str, weight: float, scores: Callable[..., np.ndarray]) -> World:
    """A world with one more reward."""
    return replace(world, weights={**world.weights, name: weight}, replaced={**world.replaced, name: scores})


def _flat(world: World) -> World:
    """A world in which the policy stays as it was."""
    return replace(world, right=lambda t: 0.3, in_form=lambda t: 0.8, length=lambda t: 20.0, wander=0.05)


_gold = _with(PPO, "gold", 0.0, lambda s, r: s["gold"])

FAULTS: dict[str, tuple[str, World]] = {
    "the loss is NaN once": ("non_finite", replace(GRPO, nulls_of_loss=(70,))),
    "the loss is NaN from half on": ("non_finite", replace(PPO, nulls_of_loss=tuple(range(30, 60)))),
    "5 % of the rows fail": ("reward_errors", replace(GRPO, errors=0.05)),
    "3 % of the rows time out": ("reward_errors", replace(PPO, timeouts=0.03)),
    "a reward of 1": ("dead_reward", _with(GRPO, "format", 0.5, lambda s, r: np.ones(len(s["correct"])))),
    "a reward of 0": ("dead_reward", _with(PPO, "correct", 1.0, lambda s, r: np.zeros(len(s["correct"])))),
    "a reward that is None": (
        "dead_reward",
        _with(GRPO, "format", 0.5, lambda s, r: np.full(len(s["correct"]), np.nan)),
    ),
    "a gate that is never open": ("gate", replace(GRPO, gates={"brevity": ("correct", lambda raw: raw > 1)})),
    "a gate that is open for one in 500": (
        "gate",
        replace(
            PPO, gates={"brevity": ("correct", lambda raw: np.random.default_rng(len(raw)).random(len(raw)) < 0.002)}
        ),
    ),
    "a gate that is never closed": ("gate", replace(GRPO, gates={"brevity": ("format", lambda raw: raw >= 0)})),
    "two of three groups alike": ("no_deviation", replace(GRPO, same_in_group=0.67)),
    "nearly all groups alike": ("no_deviation", replace(GRPO, same_in_group=0.95)),
    "gold rises, then falls": ("overoptimised", replace(_gold, watched=lambda t: 0.5 + 1.2 * t - 1.6 * t * t)),
    "gold falls from half on": ("overoptimised", replace(_gold, watched=lambda t: 0.7 - 0.8 * max(0.0, t - 0.5))),
    "gold falls slowly": (
        "overoptimised",
        replace(_with(GRPO, "gold", 0.0, lambda s, r: s["gold"]), watched=lambda t: 0.7 - 0.3 * t),
    ),
    "nothing is learned, GRPO": ("learning", _flat(GRPO)),
    "nothing is learned, PPO": ("learning", _flat(replace(PPO, events=120))),
    "the total falls": ("learning", replace(GRPO, right=lambda t: 0.6 - 0.4 * t, in_form=lambda t: 0.9 - 0.3 * t)),
    "KL grows as t^4": ("kl", replace(PPO, divergence=lambda t: 0.02 + 0.8 * t**4)),
    "KL grows to 2 nats a token": ("kl", replace(PPO, divergence=lambda t: 2.0 * t)),
    "length runs into the limit": ("truncation", replace(GRPO, length=lambda t: 24 + 50 * t)),
    "a third more is cut off in the end": ("truncation", replace(PPO, length=lambda t: 30 + 28 * t)),
    "more than half is cut off from the start": ("truncation", replace(GRPO, length=lambda t: 1.1 * LIMIT)),
    "length doubles, nothing rises": ("length", replace(_flat(GRPO), weights=_TWO, length=lambda t: 12 + 14 * t)),
    "length halves, nothing rises": ("length", replace(_flat(PPO), weights=_TWO, length=lambda t: 30 - 20 * t)),
    "entropy is gone in the first third": ("entropy", replace(_flat(GRPO), entropy=lambda t: 1.2 * np.exp(-9 * t))),
    "entropy fades, total flat": ("entropy", replace(_flat(PPO), entropy=lambda t: 1.2 - 1.15 * t)),
    "one reward twice": ("redundant", _with(_flat(GRPO), "twin", 0.5, lambda s, r: s["correct"])),
    "one reward twice, but for 1 % of the rows": (
        "redundant",
        _with(_flat(PPO), "twin", 0.5, lambda s, r: np.where(r.random(len(s["correct"])) < 0.01, 0.5, s["correct"])),
    ),
    "one reward against itself": ("redundant", _with(_flat(GRPO), "longer", 0.4, lambda s, r: -s["brevity"])),
    "a weight 50 times too large": ("one_reward", replace(GRPO, weights={**_THREE, "correct": 50.0})),
    "a scale 30 times too large": (
        "one_reward",
        _with(PPO, "judge", 1.0, lambda s, r: 30 * r.standard_normal(len(s["correct"]))),
    ),
    "half of the tokens are clipped": ("clipping", replace(PPO, clip_fraction=lambda t: 0.5)),
    "more and more are clipped": ("clipping", replace(PPO, clip_fraction=lambda t: 0.1 + 0.5 * t)),
    "nothing is ever clipped": ("clipping", replace(PPO, clip_fraction=lambda t: 0.0)),
    "the critic is worse than a constant": ("explained_variance", replace(PPO, explained=lambda t: -0.4)),
    "the critic gets worse": ("explained_variance", replace(PPO, explained=lambda t: 0.2 - 0.8 * t)),
    "the critic's loss triples": ("value_loss", replace(PPO, loss_of_critic=lambda t: 0.1 + 0.2 * t)),
    "the critic's loss explodes late": (
        "value_loss",
        replace(PPO, loss_of_critic=lambda t: 0.1 + 2 * max(0.0, t - 0.6)),
    ),
    "a reward takes 60 % of the time": ("time", replace(GRPO, seconds={**GRPO.seconds, "reward/correct": 15.0})),
    "saving takes 20 % of the time": ("time", replace(GRPO, seconds={**GRPO.seconds, "saving": 2.5})),
    "generation takes 90 % of the time": ("time", replace(PPO, seconds={**PPO.seconds, "generation": 45.0})),
    "evaluation takes half of the time": ("time", replace(PPO, seconds={**PPO.seconds, "evaluation": 10.0})),
    "a rank waits for the others": ("time", replace(GRPO, seconds={**GRPO.seconds, "waiting": 4.0})),
}
"""Name -> (the kind to find, the run with the fault)."""
