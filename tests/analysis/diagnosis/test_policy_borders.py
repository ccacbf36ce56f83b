"""Curves without noise on both sides of every border of docs/how-to/diagnosis.md, and findings told word by word.

The numbers of a curve are chosen so that its means can be said by heart, and exactly in binary where one is a border.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlhf_cli.analysis.diagnosis.finding import RunSetup
from tests.support.planted_logs import GRPO, PPO, Values, reward, told, verdict

KL = "kl/k1_policy_ref"
FLAT, RISING = reward("a", mean=[0.5] * 20), reward("a", mean=[0.0] * 10 + [1.0] * 10)
DPO = RunSetup(trainer="dpo")


def line(start: float, end: float, n: int = 20) -> list[float]:
    return [float(value) for value in np.linspace(start, end, n)]


def parts(*values: float, each: int = 2) -> list[float]:
    """The values, each so often: with six of two, thirds and sixths of twelve events."""
    return [value for value in values for _ in range(each)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.5] * 9, "unseen"),
        ([0.5] * 10, "fine"),
        ([2.0] * 16 + [1.0] * 4, "warning"),  # a nat, in the last fifth
        ([0.0] * 16 + [1.0] * 4, "warning"),
        ([0.75] * 16 + [0.99] * 4, "fine"),
        ([0.0] * 17 + [1.0] * 3, "fine"),  # three quarters of a nat, all of it in the last sixth
        ([5.0] * 16 + [0.75] * 4, "fine"),  # it has come back
        # Thirds of 0, 1/8 and 3/8: the last gained twice what there was, and not more.
        (parts(0, 0, 0.125, 0.125, 0.25, 0.5), "fine"),
        (parts(0, 0, 0.125, 0.125, 0.25, 0.53125), "warning"),
        # 1/8, 1/8, 3/8: twice what there was, though the second third gained nothing.
        (parts(0.125, 0.125, 0.125, 0.125, 0.25, 0.5), "fine"),
        # -1/2, 1/8, 7/8: gains of 5/8 and 3/4, the second not twice the first.
        (parts(-0.5, -0.5, 0.125, 0.125, 0.75, 1.0 - 1 / 64), "fine"),
        # The last sixth no higher than the one before it, or that one no higher than its own.
        (parts(0, 0, 0.125, 0.125, 0.5, 0.5), "fine"),
        (parts(0, 0, 0, 0.25, 0.25, 0.75), "fine"),
        (parts(0, 0, 0, 0.125, 0.25, 0.75), "warning"),
        # At the end less than 0.2 nats: nothing to speak of.
        (parts(0, 0, 0, 0, 0.125, 0.25), "fine"),
        (parts(0, 0, 0, 0, 0.1, 0.3), "warning"),  # 0.2 in the last third
        (parts(0, 0, 0, 0, 0.125, 0.5)[1:], "fine"),  # eleven events are none to tell a trend by
        (parts(0, 0, 0, 0, 0.125, 0.5), "warning"),
    ],
)
def test_kl(values: list[float], expected: str) -> None:
    assert verdict({KL: values}, kind="kl") == expected
    assert verdict({"kl": values}, kind="kl") == expected  # where TRL's own is all there is


def test_kl_is_told_with_what_holds_the_policy_nearer() -> None:
    far = {KL: line(0.0, 0.5, 16) + [1.25] * 4}
    ppo = "\n".join(
        [
            "warning : the policy is 1.2 nats a token away from where it began @ 1-20",
            f"  {KL}: 0.0167 -> 1.25, steps 1 to 20",
            "  try kl.coef=0.15",
            "  try trainer.args.learning_rate=0.00033",
        ]
    )
    assert told(far, PPO, kind="kl") == ppo
    for setup, words in (
        (replace(PPO, kl_coef=None), "kl.coef=0.05"),
        (replace(PPO, kl_coef=0.01), "kl.coef=0.05"),
        (GRPO, "trainer.args.beta=0.04"),
        (replace(GRPO, trainer="rloo", args={"beta": 0.5}), "trainer.args.beta=1.5"),
        (replace(GRPO, args={"beta": 0.01, "learning_rate": True}), "trainer.args.beta=0.04"),
    ):
        assert f"  try {words}" in told(far, setup, kind="kl").splitlines()
    assert "try" not in told(far, DPO, kind="kl")  # no beta of a penalty, no learning rate that is known
    assert "\n  try trainer.args.learning_rate=2" in told({**far, "learning_rate": [3.0, 6.0]}, DPO, kind="kl")
    running = told({KL: parts(0, 0, 0, 0, 0.125, 0.5)}, DPO, kind="kl")
    assert "the policy leaves its reference faster and faster: 0, 0, 0.31 nats a token @ 1-12" in running
    assert told({KL: [0.5] * 10}, kind="kl") == f"fine: {KL}: 0.5 -> 0.5, steps 1 to 10"
    assert told({KL: [0.5] * 9}, kind="kl") == f"unseen: too few log events with {KL}: 9, of 10 that it takes"


CUT = "rewards/truncation/fraction"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0] * 9, "unseen"),
        ([0.5] * 10, "warning"),
        ([0.0] * 7 + [0.5] * 3, "warning"),  # the last three tenths
        ([1.0] * 7 + [0.49] * 3, "fine"),
        ([0.0] * 6 + [0.48] * 4, "fine"),
        ([0.875] * 10, "warning"),
        ([0.9] * 10, "serious"),
        # A line over the last seven tenths of 20 events, 14 of them: 13 steps of 0.0075 are 0.0975, of 0.008 0.104.
        (line(0.05, 0.05 + 19 * 0.0075), "fine"),
        (line(0.05, 0.05 + 19 * 0.008), "warning"),
        # As steep, with 0.14 and 0.16 in the last six events, of which the middle is 2.5 steps before the end.
        (line(0.14 - 16.5 * 0.008, 0.14 + 2.5 * 0.008), "fine"),
        (line(0.16 - 16.5 * 0.008, 0.16 + 2.5 * 0.008), "warning"),
        (line(0.45, 0.25), "fine"),
        (line(0.0, 0.4, 11), "fine"),
        (line(0.0, 0.4, 12), "warning"),
        # Level but for its first tenths, which nobody looks at any more.
        ([0.0] * 6 + [0.3] * 14, "fine"),
    ],
)
def test_truncation(values: list[float], expected: str) -> None:
    assert verdict({CUT: values}, kind="truncation") == expected
    assert verdict({"completions/clipped_ratio": values}, kind="truncation") == expected


@pytest.mark.fault(38)
def test_completions_of_the_end_alone_are_empty() -> None:
    said = {
        longest: told({CUT: [0.0] * 10, "completions/max_length": [longest] * 10}, kind="truncation")
        for longest in (1.0, 2.0)
    }
    assert said[1.0].startswith("serious : every completion is empty: the policy ends before it has begun")
    assert said[2.0].startswith("fine")


def test_truncation_is_told_with_what_is_to_be_changed() -> None:
    assert told({CUT: [0.75] * 10}, kind="truncation") == "\n".join(
        [
            "warning : 75% of the completions are cut off at 32 tokens @ 1-10",
            f"  {CUT}: 0.75 -> 0.75, steps 1 to 10",
            "  try trainer.args.max_completion_length=64",
            "  try truncation=eos_penalty",
        ]
    )
    bootstrap = told({CUT: [0.75] * 10}, RunSetup(truncation="bootstrap"), kind="truncation")
    assert "cut off at 256 tokens" in bootstrap  # TRL's own limit
    assert "try truncation.mode=replace" in bootstrap
    grows = told({CUT: line(0.0, 0.38)}, kind="truncation")  # from the seventh of twenty events on
    assert "more and more completions are cut off: 12% -> 38%" in grows


LENGTH = "completions/mean_length"


@pytest.mark.parametrize(
    ("values", "rewards", "expected"),
    [
        (line(20, 30.2), FLAT, "warning"),
        (line(20, 29.8), FLAT, "fine"),
        (line(20, 9.8), FLAT, "warning"),
        (line(20, 10.2), FLAT, "fine"),
        (line(20, 40, 11), FLAT, "unseen"),
        (line(20, 40, 12), FLAT, "warning"),
        (line(20, 40), RISING, "fine"),
        # Of thirds of 12 events, the last 1/16 above the first: beside deviations of 0.5 an eighth, of 0.4 5/32.
        (line(20, 40, 12), reward("a", mean=[0.0] * 8 + [0.0625] * 4, std=0.5), "warning"),
        (line(20, 40, 12), reward("a", mean=[0.0] * 8 + [0.0625] * 4, std=0.4), "fine"),
        (line(20, 40, 12), reward("a", mean=[0.0] * 8 + [0.15 * 0.5] * 4, std=0.5), "warning"),  # 0.15 is not enough
        (line(20, 40, 12), reward("a", mean=[0.0] * 8 + [0.0625] * 4, std=0.0), "warning"),
        (line(20, 40, 12), {"rewards/a/mean": [0.0] * 8 + [9.0] * 4}, "warning"),  # no deviation is logged
        (line(20, 40, 12), {"rewards/a/mean": [0.0, 9.0], "rewards/a/std": [0.1] * 2}, "warning"),  # no three thirds
        ([1.0, 1.0, 8.0, 8.0, 3.0, 3.0, 9.0, 9.0, 1.0, 1.0, 8.0, 8.0] * 2, FLAT, "fine"),
        (parts(20, 31, 17, 44, each=5), FLAT, "unseen"),  # four values that count
    ],
)
def test_length(values: list[float], rewards: dict[str, Values], expected: str) -> None:
    assert verdict({LENGTH: values, **rewards}, kind="length") == expected


def test_length_is_told_by_how_much() -> None:
    assert told({LENGTH: line(20, 35), **FLAT}, kind="length") == "\n".join(
        [
            "warning : completions became 75% longer, and no reward rose with it @ 1-20",
            f"  {LENGTH}: 20.4 -> 34.6, steps 1 to 20",
            "  try truncation=soft_overlong",
            "  try trainer.args.beta=0.04",
            "  try trainer.args.learning_rate=0.00033",
        ]
    )
    with_it = told({LENGTH: line(20, 35), **RISING, **reward("b", mean=line(0.0, 1.0))}, kind="length")
    assert with_it == f"fine: {LENGTH}: 20.4 -> 34.6, steps 1 to 20; a and b rose with it"


FALLEN = [1.0] * 18 + [0.0625] * 2


@pytest.mark.parametrize(
    ("curves", "expected"),
    [
        ({"entropy": [1.0] * 11, "reward": [0.5] * 20}, "unseen"),
        ({"entropy": [1.0] * 12, "reward": [0.5] * 20}, "fine"),
        ({"entropy": FALLEN, "reward": [0.5] * 20}, "serious"),
        ({"ppo/entropy": FALLEN, "entropy": [1.0] * 20, "reward": [0.5] * 20}, "serious"),
        ({"entropy": [2.0] * 18 + [0.25] * 2, "reward": [0.5] * 20}, "fine"),  # an eighth
        ({"entropy": [10.0] * 18 + [1.0] * 2, "reward": [0.5] * 20}, "serious"),  # a tenth
        ({"entropy": FALLEN, "reward": [0.5] * 9}, "unseen"),
        ({"entropy": FALLEN, "reward": [0.5] * 10}, "serious"),
        # Gains of the last fifth, four of twenty events, over the first.
        ({"entropy": FALLEN, "reward": [0.0] * 16 + [0.0625] * 4}, "fine"),
        ({"entropy": FALLEN, "reward": [0.0] * 16 + [0.04] * 4}, "serious"),
        ({"entropy": FALLEN, "reward": [0.0] * 17 + [0.0625] * 3}, "serious"),  # 3/64
        ({"entropy": FALLEN, "reward": [0.0] * 4 + [1.0] * 12 + [0.0625] * 4}, "fine"),
        ({"entropy": FALLEN, "reward": [0.0] * 4 + [1.0] * 12 + [0.0] * 4}, "serious"),
        # A fifth of a deviation of 0.5, by the first fifth of the events: a tenth is not enough where it is no trend.
        ({"entropy": FALLEN, "reward": [0.0] * 16 + [0.125] * 4, "reward_std": [0.5] * 4 + [9.0] * 16}, "fine"),
        ({"entropy": FALLEN, "reward": parts(0, 3, 1, 2, 0.08, each=4), "reward_std": [0.5] * 20}, "serious"),
        # As a plain trend a tenth will do.
        ({"entropy": FALLEN, "reward": line(0.0, 0.08), "reward_std": [0.5] * 20}, "fine"),
        ({"entropy": FALLEN, "reward": line(0.0, 0.055), "reward_std": [0.5] * 20}, "serious"),
        ({"entropy": FALLEN, "reward": line(0.0, 0.04)}, "fine"),  # of no deviation at all
        ({"entropy": FALLEN, "reward": line(0.04, 0.0)}, "serious"),
    ],
)
def test_entropy(curves: dict[str, Values], expected: str) -> None:
    assert verdict(curves, kind="entropy") == expected


def test_entropy_is_told_with_the_total() -> None:
    curves = {"entropy": FALLEN, "reward": [0.5] * 20}
    assert told(curves, kind="entropy") == "\n".join(
        [
            "serious : the entropy fell from 1 to 0.062 nats a token, and the total did not rise with it @ 1-20",
            "  entropy: 1 -> 0.0625, steps 1 to 20",
            "  reward: 0.5 -> 0.5, steps 1 to 20",
            "  try trainer.args.temperature=1.2",
            "  try trainer.args.beta=0.04",
            "  try trainer.args.learning_rate=0.00033",
        ]
    )
    assert "temperature" not in told(curves, PPO, kind="entropy")
    rose = told({**curves, "reward": RISING["rewards/a/mean"]}, kind="entropy")
    assert rose == "fine: entropy: 1 -> 0.0625, steps 1 to 20; the total rose with it"


CLIPPED = "ppo/clip_fraction"


@pytest.mark.parametrize(
    ("values", "more", "expected"),
    [
        ([0.5] * 9, {}, "unseen"),
        ([0.0] * 10 + [0.3125] * 10, {}, "warning"),  # by the last half
        ([1.0] * 10 + [0.25] * 10, {}, "fine"),
        ([0.25] * 8 + [0.3] * 8, {}, "fine"),  # 0.3 is not more than 0.3
        ([0.0] * 11, {}, "unseen"),
        ([0.0] * 12, {}, "note"),
        ([0.0] * 12, {"max_steps": 24}, "note"),
        ([0.0] * 12, {"max_steps": 25}, "unseen"),
        ([0.0] * 11 + [0.001], {}, "fine"),
    ],
)
def test_clipping(values: list[float], more: dict[str, Any], expected: str) -> None:
    assert verdict({CLIPPED: values}, PPO, kind="clipping", **more) == expected


def test_clipping_is_told_with_what_is_to_be_changed() -> None:
    curves: dict[str, Values] = {CLIPPED: [0.0] * 10 + [0.5] * 10}
    assert told(curves, PPO, kind="clipping") == "\n".join(
        [
            "warning : 50% of the tokens are outside the clip range: their gradient is thrown away @ 11-20",
            f"  {CLIPPED}: 0.5 on average over steps 11 to 20",
            "  try trainer.args.learning_rate=0.00033",
            "  try trainer.args.num_iterations=1",
        ]
    )
    once = replace(PPO, args={"num_iterations": 1})
    for setup in (once, replace(PPO, args={})):
        assert "try" not in told(curves, setup, kind="clipping")
    never = {CLIPPED: [0.0] * 12}
    assert told(never, PPO, kind="clipping") == "\n".join(
        [
            "note : nothing is ever clipped though rollouts are used again: the policy hardly moves @ 1-12",
            f"  {CLIPPED}: 0 on average over steps 1 to 12",
            "  try trainer.args.learning_rate=0.003",
        ]
    )
    for setup in (once, replace(PPO, args={})):
        said = told(never, setup, kind="clipping")
        assert said == f"fine: {CLIPPED}: no rollout is used twice, so there is nothing to clip"
