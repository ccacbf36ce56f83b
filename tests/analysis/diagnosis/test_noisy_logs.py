"""Noisy logs without a fault give no finding; test_borders.py has the borders."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from rlhf_cli.analysis.diagnosis.finding import RunSetup
from rlhf_cli.analysis.diagnosis.logged import Curve
from rlhf_cli.analysis.diagnosis.outcome_findings import _error_of_thirds
from tests.support.planted_logs import GRPO, PPO, Values, found, noisy, reward

Curves = dict[str, Values]
FLAT, RISING = reward("a", mean=noisy(0.5, 0.5, 0.02)), reward("a", mean=noisy(0.2, 0.8, 0.02))
DPO = RunSetup(trainer="dpo")
GATED = RunSetup(trainer="grpo", gated={"style": ("runs",)})
KL, CUT, LENGTH = "kl/k1_policy_ref", "rewards/truncation/fraction", "completions/mean_length"
VARIANCE, VALUES = "ppo/explained_variance", "ppo/value_loss"


def watched(gold: list[float], total: list[float]) -> Curves:
    curves = reward("gold", mean=gold, weight=[0.0] * len(gold))
    return {**curves, **RISING, "reward": total, "reward_std": [0.5] * len(gold)}


def pair(correlation: float, *, std_end: float = 0.5, weight: float = 1.0) -> Curves:
    stds, mean = noisy(0.5, std_end, 0.0), noisy(0.2, 0.8, 0.05)
    curves = {**reward("a", mean=mean, std=stds), **reward("b", mean=mean, std=stds, weight=[weight] * 40)}
    return {**curves, "rewards/correlation/a/b": noisy(correlation, correlation, 0.003)}


def shares(largest: float, other: float, *, std_end: float = 0.5) -> Curves:
    one = reward("big", mean=RISING["rewards/a/mean"], advantage_share=noisy(largest, largest, 0.005))
    small = {"weight": [0.01] * 40, "advantage_share": [other] * 40}
    return {**one, **reward("small", mean=noisy(0.2, 0.8, 0.05), std=noisy(0.5, std_end, 0.0), **small)}


@pytest.mark.parametrize(
    ("kind", "curves", "setup"),
    [
        # A divergence that grows as the square root of the steps grows ever more slowly.
        ("kl", {KL: [0.6 * (k / 39) ** 0.5 for k in range(40)]}, PPO),
        ("kl", {KL: noisy(0.0, 0.6, 0.01)}, PPO),
        ("truncation", {CUT: noisy(0.3, 0.3, 0.03)}, GRPO),
        ("truncation", {CUT: noisy(0.02, 0.06, 0.01)}, GRPO),  # real, and little
        ("length", {LENGTH: noisy(20, 20, 8), **FLAT}, GRPO),
        ("explained_variance", {VARIANCE: noisy(0.0, 0.0, 0.1)}, PPO),
        ("explained_variance", {VARIANCE: noisy(-0.6, -0.1, 0.05)}, PPO),  # it learns, slowly
        # A loss that grows by as much as the variance of the returns is no fault of the critic's.
        ("value_loss", {VALUES: [0.1 * (1 + k / 33) ** 2 for k in range(40)],
                        "ppo/returns_std": [1 + k / 33 for k in range(40)]}, PPO),
        ("value_loss", {VALUES: noisy(0.3, 0.3, 0.15)}, PPO),
        ("overoptimised", watched(noisy(0.5, 0.5, 0.1), noisy(0.0, 1.0, 0.05)), PPO),
        ("overoptimised", watched(noisy(0.5, 0.47, 0.003), noisy(0.0, 1.0, 0.05)), PPO),  # little
        ("learning", {"loss": noisy(0.693, 0.4, 0.02)}, DPO),
        ("dead_reward", reward("a", mean=[*noisy(0.2, 1.0, 0, n=20), *[1.0] * 20], std=[0.3] * 20 + [0.0] * 20), GRPO),
        ("gate", {**reward("style", mean=[0.5] * 25, open_fraction=[*[0.5] * 5, *[1.0] * 20]),
                  **reward("runs", mean=[0.0] * 25, std=0.0)}, GATED),  # it has closed
    ],
)  # fmt: skip
def test_negative_control(kind: str, curves: Curves, setup: RunSetup) -> None:
    rewards = {} if setup is DPO else RISING
    assert found({**rewards, **curves}, setup, kind=kind) == []


def test_max_steps_is_the_end_of_the_best_tenth() -> None:
    """A tenth of 40 events is four, and the gold is at its best in those of the steps 21 to 24."""
    gold = [*noisy(0.5, 0.5, 0.02, n=20), *[0.95] * 4, *noisy(0.8, 0.2, 0.02, n=16)]
    (finding,) = found(watched(gold, noisy(0.0, 1.0, 0.05)), PPO, kind="overoptimised")
    assert "trainer.args.max_steps=24" in [change.words for change in finding.changes]


def test_the_error_of_two_thirds_is_scipys() -> None:
    values = np.random.default_rng(4).standard_normal(31)
    first, last = (stats.sem(part, ddof=0) for part in (values[:10], values[-10:]))
    assert _error_of_thirds(Curve("x", np.arange(31.0), values)) == pytest.approx(np.hypot(first, last))


def test_the_weights_to_try() -> None:
    """The lighter of two that say the same is to be watched. 0.5 times a weight of 1 is a third of itself where 0.05
    has the weight 0.5 / (3 * 0.05) = 3.3.
    """
    for weight, lighter in ((0.3, "b"), (-0.3, "b"), (3.0, "a"), (-3.0, "a")):
        (finding,) = found(pair(0.97, weight=weight), kind="redundant")
        assert finding.changes[0].words == f"rewards.{lighter}.weight=0"
    for std, words in ((0.5, "rewards.small.weight=0.33"), (0.05, "rewards.small.weight=3.3")):
        (finding,) = found({**shares(0.98, 0.02), "rewards/small/std": [std] * 40}, kind="one_reward")
        assert finding.changes[0].words == words


def test_a_huge_weight_becomes_a_normalisation() -> None:
    """0.5 / (3 * 0.002) would be a weight of 83: the scores are on another scale, and are to be normalised."""
    curves = {**shares(0.98, 0.02), "rewards/small/std": [0.002] * 40}
    (finding,) = found(curves, kind="one_reward")
    assert finding.changes[0].words == "rewards.small.normalize=batch"


def test_normalised_scores_deviate_by_one() -> None:
    """Half of the other's deviation: 0.5 / (3 * 1) = 0.17 for any raw deviation."""
    curves = {**shares(0.98, 0.02), "rewards/small/std": [0.002] * 40}
    setup = replace(GRPO, rewards={"small": {"normalize": "batch"}})
    (finding,) = found(curves, setup, kind="one_reward")
    assert finding.changes[0].words == "rewards.small.weight=0.17"
