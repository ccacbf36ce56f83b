"""Noiseless curves on both sides of every border of docs/how-to/diagnosis.md.

The numbers of a curve are chosen so that its means are easy to compute, and exact in binary at a border.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rlhf_cli.analysis.diagnosis.logged import RunSetup
from tests.support.planted_logs import GRPO, PPO, Values, reward, verdict

Curves = dict[str, Values]
DPO = RunSetup(trainer="dpo")
GATED = RunSetup(trainer="grpo", rewards={"style": {"gate": [{"by": "runs"}, {"by": "tests"}]}})
KL, CUT, LENGTH = "kl/k1_policy_ref", "rewards/truncation/fraction", "completions/mean_length"
ZERO, CLIPPED, VALUE, EXPLAINED = (
    *("frac_reward_zero_std", "ppo/clip_fraction"),
    *("ppo/value_loss", "ppo/explained_variance"),
)
FLAT, RISING = reward("a", mean=[0.5] * 20), reward("a", mean=[0.0] * 10 + [1.0] * 10)
FALLEN = [1.0] * 18 + [0.0625] * 2


def line(start: float, end: float, n: int = 20) -> list[float]:
    return [float(value) for value in np.linspace(start, end, n)]


def parts(*values: float, each: int = 2) -> list[float]:
    """Repeat each value: six values give thirds and sixths of twelve events."""
    return [value for value in values for _ in range(each)]


NON_FINITE = [
    ({"eval_loss": [1.0]}, "unseen"),
    ({"grad_norm": [None] + [1.0] * 19}, "fine"),  # one of twenty
    ({"grad_norm": [None] + [1.0] * 18}, "serious"),
    *(
        ({name: [0.5, None, 0.5], "lr": [1.0] * 40}, "serious")
        for name in ("loss", "ppo/policy_loss", "ppo/value_loss", "kl", "kl/k1_policy_ref", "entropy")
    ),
    ({"reward": [None] * 3}, "fine"),
]

NO_DEVIATION = [
    ({ZERO: [1.0] * 9}, "unseen"),
    ({ZERO: [0.0] * 10 + [0.5] * 10}, "warning"),
    ({ZERO: [1.0] * 10 + [0.4375] * 10}, "fine"),
    ({ZERO: [0.875] * 10}, "warning"),
    ({ZERO: [0.9] * 10}, "serious"),
    ({ZERO: [1.0] * 20, "reward_std": [0.5] * 4 + [9.0] * 16, "reward": [0.0] * 16 + [0.5] * 4}, "serious"),
    ({ZERO: [1.0] * 20, "reward_std": [0.5] * 4 + [9.0] * 16, "reward": [0.0] * 16 + [0.625] * 4}, "note"),
    ({ZERO: [1.0] * 20, "reward_std": [0.5] * 20, "reward": [0.0] * 4 + [9.0] * 12 + [0.625] * 4}, "note"),
    ({ZERO: [1.0] * 20, "reward_std": [0.5] * 20, "reward": [0.0] * 4 + [9.0] * 12 + [0.0] * 4}, "serious"),
    ({ZERO: [1.0] * 20, "reward_std": [0.5] * 20, "reward": [0.0] * 17 + [0.625] * 3}, "serious"),  # 15/32
    ({ZERO: [1.0] * 20, "reward_std": [0.5] * 20, "reward": [0.0] * 8 + [9.0]}, "serious"),  # nine events
    ({ZERO: [1.0] * 20, "reward_std": [0.5] * 20, "reward": [0.0] * 8 + [9.0] * 2}, "note"),
    ({ZERO: [1.0] * 20, "reward_std": [0.5], "reward": [0.0] * 8 + [9.0] * 2}, "note"),  # one spread will do
]


def watched(gold: Values, total: Values, std: float = 0.5) -> Curves:
    n = len(gold)
    return {**reward("gold", mean=gold, std=std, weight=[0.0] * n), "reward": total, "reward_std": [9.0] * n}


OVEROPTIMISED = [
    (watched(line(0.5, 0.0, 11), line(0, 1, 11)), "unseen"),
    # By a tenth of a deviation of 1/2.
    (watched(line(0.5, 0.451), line(0, 1)), "fine"),
    (watched(line(0.5, 0.449), line(0, 1)), "serious"),
    # What is trained on is compared over the last and the first three tenths.
    (watched(line(0.5, 0.0), [0.5] * 14 + [0.75] * 6), "serious"),
    (watched(line(0.5, 0.0), [0.75] * 6 + [1.0] * 7 + [0.0] + [0.75] * 6), "fine"),
    (watched(line(0.5, 0.0, 12), [0.75] * 4 + [0.0] * 4 + [0.75] * 4), "fine"),
    (watched(line(0.5, 0.0, 12), [0.5] * 4 + [1.0] * 4 + [0.75] * 4), "serious"),
    (watched(line(0.5, 0.0), [0.0] * 9 + [1.0]), "serious"),
    (watched(line(0.5, 0.0), [0.0] * 8 + [1.0]), "fine"),  # nine events are too few
    ({"eval_reward": line(0.5, 0.0, 9), "reward": line(0, 1)}, "unseen"),
    ({"eval_reward": line(0.5, 0.0, 10), "reward": line(0, 1)}, "serious"),
    ({"eval_reward": line(0.5, 0.495), "reward": line(0, 1)}, "serious"),  # of no deviation at all
    ({"eval_greedy/total": line(0.5, 0.0), "reward": line(0, 1)}, "serious"),
    ({"eval_sampled/total": line(0, 0.5), "eval_greedy/total": line(0.5, 0), "reward": line(0, 1)}, "fine"),
    ({"eval_loss": line(0.5, 1.0, 10), "loss": line(1, 0)}, "serious"),
    # A tenth of its own mean: 1.95/20 and 2.05/20 and some.
    ({"eval_loss": line(0.95, 1.05), "loss": line(1, 0)}, "serious"),
    ({"eval_loss": line(0.96, 1.04), "loss": line(1, 0)}, "fine"),
    ({"loss": line(1, 0)}, "unseen"),
]


def total(values: Values, std: float = 0.5, rows: float = 8.0) -> Curves:
    n = len(values)
    return {"reward": values, "reward_std": [std] * n, **reward("a", mean=values, calls=[rows] * n)}


LEARNING = [
    (total([0.5] * 11), None, "unseen"),
    (total([0.5] * 12), None, "serious"),
    (total([0.5] * 12), 24, "serious"),
    (total([0.5] * 12), 25, "unseen"),
    # By a fifth of a deviation of 1/2: 0.1. A third less than it is no rise; any line that surely rises is.
    (total([0.0] * 8 + [0.125] * 4), None, "fine"),
    (total(line(0, 0.05)), None, "fine"),
    # A rise by 0.2 that is less than five standard errors of its own scatter, and a bend too small to count.
    (total([0.0, 1.0] * 5 + [0.2, 1.1] * 5), None, "unseen"),
    # Learned within four rounds: the first third scatters by what it learns, rows by 5 * 0.17 * sqrt(2 / (6.7 rows)).
    (total([0.24, 0.67, 0.85, 0.92] + [0.97] * 16, std=0.17, rows=256.0), None, "fine"),
    (total([0.24, 0.67, 0.85, 0.92] + [0.97] * 16, std=0.17, rows=2.0), None, "unseen"),
    (total([0.5, 0.5, 0.75, 0.25, 0.5, 0.5] * 3), None, "unseen"),
    # 1.5 times 0.1, and five of what 8 rows an event leave to chance: of 20 events and deviations of 1/2 0.48.
    (total([1.0] * 10 + [0.5] * 10), None, "serious"),
    (total([0.5] * 10 + [0.0, 1.0] * 5), None, "unseen"),
    ({**total([0.5] * 20), **reward("b", mean=[0.5] * 20, weight=[1.0, 2.0] * 10)}, None, "unseen"),
    ({"loss": [0.5] * 11}, None, "unseen"),
    ({"loss": [0.5] * 12}, None, "serious"),
    ({"loss": line(0.5, 0.4)}, None, "fine"),
    ({"loss": line(0.4, 0.5)}, None, "serious"),
    # Two in a hundred of where it began.
    ({"loss": [1.0] * 8 + [0.97] * 4}, None, "fine"),
]

KLS = [
    ([0.5] * 9, "unseen"),
    ([0.5] * 10, "fine"),
    ([2.0] * 16 + [1.0] * 4, "warning"),  # a nat, in the last fifth
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
    # At the end less than 0.2 nats: nothing to speak of.
    (parts(0, 0, 0, 0, 0.125, 0.25), "fine"),
    (parts(0, 0, 0, 0, 0.1, 0.3), "warning"),  # 0.2 in the last third
    (parts(0, 0, 0, 0, 0.125, 0.5)[1:], "fine"),  # eleven events are none to tell a trend by
    (parts(0, 0, 0, 0, 0.125, 0.5), "warning"),
]

TRUNCATION = [
    ([0.0] * 9, "unseen"),
    ([0.0] * 7 + [0.5] * 3, "warning"),  # the last three tenths
    ([1.0] * 7 + [0.49] * 3, "fine"),
    ([0.875] * 10, "warning"),
    ([0.9] * 10, "serious"),
    # A line over the last seven tenths of 20 events, 14 of them: 13 steps of 0.0075 are 0.0975, of 0.008 0.104.
    (line(0.05, 0.05 + 19 * 0.0075), "fine"),
    (line(0.05, 0.05 + 19 * 0.008), "warning"),
    # As steep, with 0.14 and 0.16 in the last six events; their middle is 2.5 steps before the end.
    (line(0.14 - 16.5 * 0.008, 0.14 + 2.5 * 0.008), "fine"),
    (line(0.16 - 16.5 * 0.008, 0.16 + 2.5 * 0.008), "warning"),
    (line(0.0, 0.4, 11), "fine"),
    (line(0.0, 0.4, 12), "warning"),
    # Level except for its first tenths, which no longer count.
    ([0.0] * 6 + [0.3] * 14, "fine"),
]

LENGTHS = [
    (line(20, 30.2), FLAT, "warning"),
    (line(20, 29.8), FLAT, "fine"),
    (line(20, 9.8), FLAT, "warning"),
    (line(20, 10.2), FLAT, "fine"),
    (line(20, 40, 11), FLAT, "unseen"),
    (line(20, 40), RISING, "fine"),
    # Of thirds of 12 events, the last 1/16 above the first: beside deviations of 0.5 an eighth, of 0.4 5/32.
    (line(20, 40, 12), reward("a", mean=[0.0] * 8 + [0.0625] * 4, std=0.5), "warning"),
    (line(20, 40, 12), reward("a", mean=[0.0] * 8 + [0.0625] * 4, std=0.4), "fine"),
    (line(20, 40, 12), reward("a", mean=[0.0] * 8 + [0.0625] * 4, std=0.0), "warning"),
    (line(20, 40, 12), {"rewards/a/mean": [0.0] * 8 + [9.0] * 4}, "warning"),  # no deviation is logged
    (line(20, 40, 12), {"rewards/a/mean": [0.0, 9.0], "rewards/a/std": [0.1] * 2}, "warning"),  # no three thirds
    ([1.0, 1.0, 8.0, 8.0, 3.0, 3.0, 9.0, 9.0, 1.0, 1.0, 8.0, 8.0] * 2, FLAT, "fine"),
    (parts(20, 31, 17, 44, each=5), FLAT, "unseen"),  # four values that count
]

ENTROPY = [
    ({"entropy": [1.0] * 11, "reward": [0.5] * 20}, "unseen"),
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
    # A fifth of a deviation of 0.5, by the first fifth of the events: a tenth is not enough where it is no trend.
    ({"entropy": FALLEN, "reward": [0.0] * 16 + [0.125] * 4, "reward_std": [0.5] * 4 + [9.0] * 16}, "fine"),
    ({"entropy": FALLEN, "reward": parts(0, 3, 1, 2, 0.08, each=4), "reward_std": [0.5] * 20}, "serious"),
    ({"entropy": FALLEN, "reward": parts(0, 3, 1, 2, 0.2, each=4), "reward_std": [0.5] * 20}, "fine"),
    ({"entropy": FALLEN, "reward": parts(0, 30, 10, 20, 1, each=4), "reward_std": [5.0] * 20}, "serious"),  # a fifth
    # As a plain trend a tenth will do.
    ({"entropy": FALLEN, "reward": line(0.0, 0.08), "reward_std": [0.5] * 20}, "fine"),
    ({"entropy": FALLEN, "reward": line(0.0, 0.055), "reward_std": [0.5] * 20}, "serious"),
    ({"entropy": FALLEN, "reward": line(0.0, 0.04)}, "fine"),  # of no deviation at all
]

CLIPPING = [
    ([0.5] * 9, None, "unseen"),
    ([0.0] * 10 + [0.3125] * 10, None, "warning"),  # by the last half
    ([1.0] * 10 + [0.25] * 10, None, "fine"),
    ([0.25] * 8 + [0.3] * 8, None, "fine"),  # 0.3 is not more than 0.3
    ([0.0] * 11, None, "unseen"),
    ([0.0] * 12, None, "note"),
    ([0.0] * 12, 24, "note"),
    ([0.0] * 12, 25, "unseen"),
    ([0.0] * 11 + [0.001], None, "fine"),
]

EXPLAINED_VARIANCE = [
    ([0.0] * 20, None, "fine"),
    ([-0.5] * 9, None, "unseen"),
    ([0.5] * 10 + [-0.5] * 10, None, "warning"),
    ([-0.5] * 10 + [0.5] * 10, None, "fine"),
    ([-0.5] * 10 + [0.0] * 2 + [-0.5] * 8, None, "warning"),
    ([0.5] * 10 + [0.0] * 3 + [-0.5] * 7, None, "fine"),
    ([-0.5] * 10, 20, "warning"),
    ([-0.5] * 10, 21, "unseen"),
    (line(-1.0, -0.25), None, "fine"),  # it learns
    ([*line(-1.0, -0.25, 15), *[-0.5] * 5], None, "warning"),  # no more
    ([-1.0, -0.75] * 5 + [-0.25, -0.5, -0.25, -0.5, -0.25] * 2, None, "warning"),
    (line(-0.25, -1.0), None, "warning"),
]

VALUE_LOSS = [
    (line(1, 4, 11), None, "unseen"),
    (line(1, 2.1, 12), None, "fine"),  # quarters of 1.1 and 2
    (line(1, 2.7, 12), None, "warning"),  # 1.15 and 2.55
    (line(0.001, 0.0027, 12), None, "warning"),
    (line(4, 1, 12), None, "fine"),
    (parts(1, 8, 1, 8, each=4), None, "unseen"),  # four values that count
    # It grew after the second quarter and has not since: from there on it is a rise all the same.
    (
        [1.0] * 10
        + [0.05, 0.15] * 5
        + [one + 0.05 * (-1) ** k for k, one in enumerate(line(0.1, 0.4, 10))]
        + [0.45, 0.35] * 5,
        None,
        "warning",
    ),
    ([0.25] * 8 + [0.375] * 4 + [0.4375] * 3 + [0.5] * 5, None, "warning"),  # twice what it was, and not more
    # The returns' variance from 1 to 4 as well, or to 2, or what nine events say of it.
    (line(1, 4, 16), line(1, 2, 16), "fine"),
    (line(1, 4, 16), line(0.01, 0.02, 16), "fine"),
    (line(1, 4, 16), line(1, 2, 9), "warning"),
    # The loss three times, the variance two and a half times: 1.2 times as much, and not more.
    (parts(0.25, 0.375, 0.5, 0.75, each=4), [*[1.0] * 12, 1.0, 1.0, 2.0, 2.0], "warning"),
]


def judge(errors: float, timeouts: float = 0.0, n: int = 10) -> Curves:
    """Return a reward with a hundred rows per round, of them `errors` failures and `timeouts` timeouts."""
    return reward("judge", mean=[0.5] * n, calls=[100.0] * n, errors=[errors] * n, timeouts=[timeouts] * n)


def tools(errors: float, unknown: float) -> Curves:
    """Return ten rounds of ten calls of a tool, of them `errors` failures, and of `unknown` calls that reach none."""
    counts = {"add/calls": 10.0, "add/errors": errors, "unknown/calls": unknown, "unknown/errors": unknown}
    return {**judge(0.0), **{f"tools/{name}": [count] * 10 for name, count in counts.items()}}


NO_CALLS = ((9, "fine"), (10, "warning"))

REWARD_ERRORS = [
    (tools(4.9, 0.0), "fine"),
    (tools(5.0, 0.0), "warning"),
    (tools(0.0, 9.9), "fine"),
    (tools(0.0, 10.0), "warning"),  # half of all calls
    *(({**judge(0.0), "tools/add/calls": [0.0] * n, "tools/add/errors": [0.0] * n}, said) for n, said in NO_CALLS),
    (judge(1.99), "fine"),
    (judge(2.0), "warning"),
    (judge(9.9), "warning"),
    (judge(10.0), "serious"),
    (judge(1.0, 0.99), "fine"),
    (judge(1.0, 1.0), "warning"),
    ({**judge(1.0), "rewards/judge/errors": [0.0] * 9 + [20.0]}, "warning"),  # 20 of 1,000
    ({"loss": [0.1]}, "unseen"),
    (reward("asked", mean=[0.5]), "fine"),
]

DEAD_REWARD = [
    (reward("a", mean=[0.5] * 10, std=0.0), "serious"),
    (reward("a", mean=[0.5] * 10, std=0.0, weight=[0.0] * 10), "warning"),
    # To a millionth of its size, by its mean and by its rows.
    (reward("a", mean=[400.0] * 9 + [400.0003], std=0.0), "serious"),
    (reward("a", mean=[400.0] * 9 + [400.0005], std=0.0), "fine"),
    (reward("a", mean=[-400.0] * 10, std=[0.0] * 9 + [0.0003]), "serious"),
    (reward("a", mean=[400.0] * 10, std=[0.0] * 9 + [0.0005]), "fine"),
    (reward("a", mean=[0.0, 1e-13] * 5, std=0.0), "fine"),
    # Its gate is to blame from fewer rows than one in a hundred.
    (reward("a", mean=[0.5] * 10, std=0.0, open_fraction=[0.0078125] * 10), ""),
    (reward("a", mean=[0.5] * 10, std=0.0, open_fraction=[0.01]), "fine"),
    # Behind a gate that not all rows pass the same score tells rows apart.
    (reward("a", mean=[1.0] * 10, std=0.0, open_fraction=[1.0] * 9 + [0.98]), "fine"),
    (reward("a", mean=[1.0] * 10, std=0.0, open_fraction=[1.0] * 10), "serious"),
    ({"rewards/a/mean": [None] * 9, "loss": [0.1] * 9}, "unseen"),
    ({"rewards/a/mean": [None] * 10, "loss": [0.1] * 10}, "serious"),
]

GATES = [
    ([0.0] * 9, None, "unseen"),
    ([0.0] * 10, None, "serious"),
    ([0.0] * 11 + [0.12], None, "fine"),  # one row in a hundred
    ([0.0] * 11 + [0.11], None, "serious"),
    ([1.0] * 11, None, "fine"),
    ([1.0] * 12, None, "note"),
    ([1.0] * 11 + [0.991], None, "note"),
    ([1.0] * 11 + [0.99], None, "fine"),
    ([1.0] * 12, 24, "note"),
    ([1.0] * 12, 25, "unseen"),
]


def alike(r: Values, *, std: Values = (0.5,) * 20, name: str = "a/b", **weights: float) -> Curves:
    """Rewards a and b whose rows are correlated by `r`, an event each."""
    both = {"a": 1.0, "b": 1.0, **weights}
    curves = {name: values for one, weight in both.items()
              for name, values in reward(one, mean=[0.5] * 20, std=std, weight=[weight] * 20).items()}  # fmt: skip
    return {**curves, f"rewards/correlation/{name}": r}


REDUNDANT = [
    (alike([1.0] * 17), None, "unseen"),
    (alike([1.0] * 18), None, "unseen"),
    (alike([1.0] * 19), None, "warning"),  # half of them are ten, rounded
    (alike([1.0] * 20, name="b/a"), None, "warning"),
    (alike([0.0] * 10 + [0.95] * 10), None, "warning"),
    (alike([0.0] * 10 + [0.9375] * 10), None, "fine"),
    (alike([1.0] * 10 + [0.0] * 2 + [1.0] * 8), None, "warning"),  # four of five
    (alike([1.0] * 10 + [0.0] * 3 + [1.0] * 7), None, "fine"),
    # By deviations of 1/2 in the first fifth, four of twenty events, the last half may have a quarter.
    (alike([1.0] * 20, std=[0.5] * 4 + [0.0] * 6 + [0.25] * 10), None, "warning"),
    (alike([1.0] * 20, std=[0.5] * 4 + [0.0] * 6 + [0.24] * 10), None, "fine"),
    (alike([1.0] * 20, std=[0.0] * 20), None, "fine"),
    (alike([1.0] * 20, std=[0.5] * 9), None, "fine"),
    (alike([1.0] * 20, std=[0.5] * 10), None, "warning"),
    (alike([1.0] * 20), 60, "warning"),
    (alike([1.0] * 20), 61, "unseen"),
]


def shares(big: Values, small: Values, **named: Any) -> Curves:
    n = len(big)
    one = reward("big", mean=[0.5] * n, std=[0.5] * n, advantage_share=big, weight=[1.0] * n)
    other = reward("small", mean=[0.5] * n, std=named.pop("std", [0.5] * n), advantage_share=small, weight=[0.25] * n)
    return {**one, **other, **named}


ONE_REWARD = [
    (shares([1.0] * 18, [0.0] * 18), None, "unseen"),
    (shares([0.0] * 10 + [1.0] * 10, [0.9] * 10 + [0.0] * 10), None, "warning"),
    (shares([0.9] * 20, [0.0] * 20), None, "warning"),
    (shares([0.89] * 20, [0.0] * 20), None, "fine"),
    # 0.9 on average, in four of five events or in seven of ten.
    (shares([1.0] * 18 + [0.5] * 2, [0.0] * 20), None, "warning"),
    (shares([1.0] * 17 + [0.7] * 3, [0.0] * 20), None, "fine"),
    (shares([1.0] * 20, [0.05] * 20), None, "fine"),
    (shares([1.0] * 20, [0.046875] * 20), None, "warning"),
    (shares([1.0] * 20, [-0.046875] * 20), None, "warning"),
    (shares([1.0] * 20, [-0.0625] * 20), None, "fine"),
    (shares([1.0] * 20, [0.0] * 20, std=[0.5] * 4 + [0.25] * 16), None, "warning"),
    (shares([1.0] * 20, [0.0] * 20, std=[0.5] * 4 + [0.24] * 16), None, "fine"),
    (shares([1.0] * 20, [0.0] * 20, std=[0.0] * 20), None, "fine"),
    (shares([1.0] * 20, [0.0] * 20), 60, "warning"),
    (shares([1.0] * 20, [0.0] * 20), 61, "unseen"),
    (shares([1.0] * 20, [0.0] * 9), None, "fine"),  # the share of the other reward is unknown
    (reward("big", mean=[0.5] * 20, advantage_share=[1.0] * 20), None, "fine"),
]


Case = tuple[str, RunSetup, Any, int | None, str]
TABLES: list[tuple[str, RunSetup, str, Any]] = [
    *(("non_finite", GRPO, "", NON_FINITE), ("no_deviation", GRPO, "", NO_DEVIATION)),
    *(("overoptimised", DPO, "", OVEROPTIMISED), ("learning", GRPO, "", LEARNING)),
    *(("kl", GRPO, KL, KLS), ("truncation", GRPO, CUT, TRUNCATION)),
    # TRL's own metric if ours is missing.
    *(("kl", GRPO, "kl", KLS[:3]), ("truncation", GRPO, "completions/clipped_ratio", TRUNCATION[:3])),
    *(("entropy", GRPO, "", ENTROPY), ("clipping", PPO, CLIPPED, CLIPPING)),
    *(("explained_variance", PPO, EXPLAINED, EXPLAINED_VARIANCE), ("reward_errors", GRPO, "", REWARD_ERRORS)),
    *(("dead_reward", GRPO, "", DEAD_REWARD), ("gate", GATED, "rewards/style/open_fraction", GATES)),
    *(("redundant", GRPO, "", REDUNDANT), ("one_reward", GRPO, "", ONE_REWARD)),
]
"""Kind, setup, the metric that a row has the values of ('': a row has curves), and the rows."""


def cases() -> Iterator[Case]:
    """Yield (kind, setup, curves, last step of the training, expected result) for every border."""
    for kind, setup, metric, rows in TABLES:
        for shown, *last, expected in rows:
            yield kind, setup, {metric: shown} if metric else shown, last[0] if last else None, expected
    for values, rewards, expected in LENGTHS:
        yield "length", GRPO, {LENGTH: values, **rewards}, None, expected
    for loss, std, expected in VALUE_LOSS:
        yield "value_loss", PPO, {VALUE: loss, **({"ppo/returns_std": std} if std else {})}, None, expected


@pytest.mark.parametrize(("kind", "setup", "curves", "max_steps", "expected"), list(cases()))
def test_border(kind: str, setup: RunSetup, curves: Any, max_steps: int | None, expected: str) -> None:
    assert verdict(curves, setup, max_steps=max_steps, kind=kind) == expected
