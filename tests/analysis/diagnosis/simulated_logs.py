"""Logs of simulated runs: rows are drawn, and their metrics are computed by definition (docs/reference/metrics.md).

A policy is a few numbers that change during the training: how often it is right, in the right form, short, certain,
and how far it has moved. A fault changes these numbers or the rewards, and a metric only if there is no other way (a
critic's explained variance, a clip fraction).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

ROWS, GROUP, LIMIT = 64, 8, 64
Config = dict[str, Any]
Event = dict[str, Any]


@dataclass
class World:
    """What is true of a run at every step; `t` goes from 0 to 1. A fault replaces some of it."""

    is_ppo: bool = False
    events: int = 120
    right: Callable[[float], float] = lambda t: 0.15 + 0.65 * t / (t + 0.25)
    in_form: Callable[[float], float] = lambda t: 0.5 + 0.48 * t / (t + 0.1)
    length: Callable[[float], float] = lambda t: 24 - 6 * t
    entropy: Callable[[float], float] = lambda t: 1.2 - 0.7 * t
    divergence: Callable[[float], float] = lambda t: 0.4 * t**0.5
    clip_fraction: Callable[[float], float] = lambda t: 0.12 - 0.08 * t
    explained: Callable[[float], float] = lambda t: 0.4 * t / (t + 0.1)
    loss_of_critic: Callable[[float], float] = lambda t: 0.3 - 0.2 * t
    watched: Callable[[float], float] | None = None
    """The mean of a reward of weight 0; None for none."""
    weights: dict[str, float] = field(default_factory=lambda: {"correct": 1.0, "format": 0.5, "brevity": 1.5})
    replaced: dict[str, Callable[[dict[str, np.ndarray], np.random.Generator], np.ndarray]] = field(
        default_factory=dict
    )
    """Reward -> what gives its raw scores instead, from the others' scores."""
    gates: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = field(default_factory=dict)
    """Reward -> (the reward its gate reads, which rows it is open for)."""
    same_in_group: float = 0.0
    """The share of prompts whose completions all have the same scores."""
    errors: float = 0.0
    timeouts: float = 0.0
    nulls_of_loss: tuple[int, ...] = ()
    seconds: dict[str, float] = field(default_factory=lambda: {"generation": 5.0, "forward": 1.5, "backward": 3.0})
    """Phase, as docs/how-to/profile.md has them -> the seconds that it takes between two log events."""
    wander: float = 0.15
    """The deviation, in logits, of the slow noise in how often the policy is right; its memory is a tenth of a run."""


def simulate(world: World, seed: int) -> tuple[list[Event], Config]:
    """Return the log events and the configuration of a run of this world."""
    rng = np.random.default_rng(seed)
    rho = 1.0 - 1.0 / max(2.0, world.events / 10)
    slow = np.zeros(2)
    made = []
    for number in range(world.events):
        slow = rho * slow + np.sqrt(1 - rho**2) * world.wander * rng.standard_normal(2)
        made.append(_event(world, rng, number, slow))
    return made, _config(world)


def _config(world: World) -> Config:
    rewards: Config = {name: {"weight": weight} for name, weight in world.weights.items()}
    for name, (by, _) in world.gates.items():
        rewards[name]["gate"] = {"by": by, "at_least": 1.0}
    args = {"max_completion_length": LIMIT, "learning_rate": 1e-3, "per_device_train_batch_size": ROWS}
    args["num_generations"] = 1 if world.is_ppo else GROUP
    if world.is_ppo:
        args["num_iterations"] = 4
    trainer = {
        "name": "ppo" if world.is_ppo else "grpo",
        "baseline": "critic" if world.is_ppo else "group",
        "args": args,
    }
    kl = {"coef": 0.05} if world.is_ppo else None
    return {"trainer": trainer, "rewards": rewards, "kl": kl, "truncation": {"policy": "none"}}


def _event(world: World, rng: np.random.Generator, number: int, slow: np.ndarray) -> Event:
    t = number / max(1, world.events - 1)
    scores, lengths = _rows(world, rng, t, slow)
    raw: dict[str, np.ndarray] = {name: scores[name] for name in world.weights}
    effective = dict(raw)
    event: Event = {"step": number + 1, "time_s": float(number), "loss": 0.02 * rng.standard_normal(), "grad_norm": 1.0}
    if number in world.nulls_of_loss:
        event["loss"] = event["grad_norm"] = None
    is_open = {name: np.ones(ROWS, bool) for name in raw}
    for name, (by, opens) in world.gates.items():
        is_open[name] = opens(raw[by])
        raw[name] = np.where(is_open[name], raw[name], np.nan)
        effective[name] = np.where(is_open[name], effective[name], 0.0)
    for name, weight in world.weights.items():
        seen = raw[name][~np.isnan(raw[name])]
        event[f"rewards/{name}/mean"] = float(seen.mean()) if len(seen) else None
        event[f"rewards/{name}/std"] = float(seen.std(ddof=1)) if len(seen) > 1 else None
        event[f"rewards/{name}/weight"] = weight
        event[f"rewards/{name}/open_fraction"] = float(is_open[name].mean())
        event[f"rewards/{name}/calls"] = float(is_open[name].sum())
        late = rng.binomial(ROWS, world.timeouts)
        event[f"rewards/{name}/timeouts"] = float(late)
        event[f"rewards/{name}/errors"] = float(late + rng.binomial(ROWS, world.errors))
    event |= _totals(world, effective) | _correlations(raw)
    event["completions/mean_length"] = float(lengths.mean())
    event["rewards/truncation/fraction"] = event["completions/clipped_ratio"] = float((lengths >= LIMIT).mean())
    event["entropy"] = max(1e-4, world.entropy(t) * float(np.exp(0.05 * rng.standard_normal())))
    event["clip_ratio/region_mean"] = 0.0
    event["learning_rate"] = 1e-3 * (1 - t)
    clock = np.random.default_rng(number)  # of its own: how long a step takes changes nothing of what is drawn
    took = {key: seconds * float(np.exp(0.1 * clock.standard_normal())) for key, seconds in world.seconds.items()}
    event["time/elapsed_s"] = sum(took.values())
    event |= {f"time/share/{key}": seconds / event["time/elapsed_s"] for key, seconds in took.items()}
    if world.is_ppo:
        far = world.divergence(t)
        event["kl/k1_policy_ref"] = far * float(np.exp(0.1 * rng.standard_normal()))
        event["ppo/entropy"] = event.pop("entropy")
        event["ppo/clip_fraction"] = max(0.0, world.clip_fraction(t) * float(np.exp(0.3 * rng.standard_normal())))
        event["ppo/explained_variance"] = world.explained(t) + 0.1 * float(rng.standard_normal())
        event["ppo/value_loss"] = world.loss_of_critic(t) * float(np.exp(0.25 * rng.standard_normal()))
        event["ppo/returns_std"] = event["reward_std"]
        event["critic/learning_rate"] = 1e-3
        del event["frac_reward_zero_std"]
    return event


def _rows(
    world: World, rng: np.random.Generator, t: float, slow: np.ndarray
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the raw scores of a batch and the lengths of its completions; prompts are of different difficulty."""
    hard = np.repeat(rng.standard_normal(ROWS // GROUP), GROUP)
    right = rng.random(ROWS) < _shifted(world.right(t), slow[0] + hard)
    in_form = rng.random(ROWS) < _shifted(world.in_form(t), slow[1])
    lengths = np.minimum(LIMIT, rng.gamma(9.0, max(0.1, world.length(t)) / 9.0, ROWS))
    scores = {"correct": right.astype(float), "format": in_form.astype(float), "brevity": 1.0 - lengths / LIMIT}
    if world.watched is not None:
        scores["gold"] = world.watched(t) + 0.5 * rng.standard_normal(ROWS)
    for name, instead in world.replaced.items():
        scores[name] = instead(scores, rng)
    if world.same_in_group:
        first = np.arange(ROWS) // GROUP * GROUP
        same = np.repeat(rng.random(ROWS // GROUP) < world.same_in_group, GROUP)
        scores = {name: np.where(same, values[first], values) for name, values in scores.items()}
    return scores, lengths


def _shifted(probability: float, logits: np.ndarray | float) -> np.ndarray:
    inside = min(max(probability, 1e-6), 1 - 1e-6)
    return np.asarray(1.0 / (1.0 + np.exp(-(np.log(inside / (1 - inside)) + logits))))


def _totals(world: World, effective: dict[str, np.ndarray]) -> Event:
    """The total, the groups without deviation, and each component's share of the advantages."""
    parts = {name: world.weights[name] * np.nan_to_num(values) for name, values in effective.items()}
    total = np.sum(list(parts.values()), axis=0)
    event: Event = {"reward": float(total.mean()), "reward_std": float(total.std(ddof=1))}
    size = ROWS if world.is_ppo else GROUP

    def centred(values: np.ndarray) -> np.ndarray:
        groups = values.reshape(-1, size)
        return (groups - groups.mean(axis=1, keepdims=True)).ravel()

    event["frac_reward_zero_std"] = float((total.reshape(-1, GROUP).std(axis=1) < 1e-9).mean())
    advantages = centred(total)
    if (squares := float(advantages @ advantages)) > 1e-12:
        for name, part in parts.items():
            event[f"rewards/{name}/advantage_share"] = float(centred(part) @ advantages) / squares
    return event


def _correlations(raw: dict[str, np.ndarray]) -> Event:
    names, event = list(raw), {}
    for place, one in enumerate(names):
        for other in names[place + 1 :]:
            pair = np.stack([raw[one], raw[other]])
            pair = pair[:, ~np.isnan(pair).any(axis=0)]
            if pair.shape[1] > 1 and (pair.std(axis=1) > 0).all():
                event[f"rewards/correlation/{one}/{other}"] = float(np.corrcoef(pair)[0, 1])
    return event
