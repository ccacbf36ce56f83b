"""Advantages of GRPO and RLOO against loops over Python's statistics, written from the papers' equations."""

from __future__ import annotations

import math
import statistics

import pytest
import torch

from rlhf_cli.numerics.group_advantages import EPS, grpo_advantages, rloo_advantages, summed
from tests.support.tolerances import ARITHMETIC

NAN = float("nan")
TOTALS = [1.0, 0.25, -0.5, NAN, 3.0, 3.0, 3.0, 3.0, NAN, NAN, NAN, 0.7, NAN, 2.0, NAN, 5.0]
GROUP = 4


def groups() -> list[list[float]]:
    """The totals that there are, a list a group."""
    return [[x for x in TOTALS[start : start + GROUP] if not math.isnan(x)] for start in range(0, len(TOTALS), GROUP)]


def deviation(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else NAN


@pytest.mark.parametrize("scale", ["none", "group", "batch"])
def test_grpo(scale: str) -> None:
    expected = []
    everything = [x for x in TOTALS if not math.isnan(x)]
    for row, total in enumerate(TOTALS):
        own = groups()[row // GROUP]
        by = {"none": 1.0, "group": deviation(own) + EPS, "batch": deviation(everything) + EPS}[scale]
        value = (total - statistics.fmean(own)) / by
        expected.append(0.0 if math.isnan(value) else value)
    found = grpo_advantages(torch.tensor(TOTALS), GROUP, scale).tolist()  # type: ignore[arg-type]
    assert found == pytest.approx(expected, **ARITHMETIC)
    assert any(found)


@pytest.mark.parametrize("is_normalized", [False, True])
def test_rloo(is_normalized: bool) -> None:
    raw = []
    for row, total in enumerate(TOTALS):
        own = groups()[row // GROUP]
        others = (sum(own) - total) / (len(own) - 1) if len(own) > 1 else NAN
        raw.append(total - others)
    there = [x for x in raw if not math.isnan(x)]
    mean, spread = (statistics.fmean(there), deviation(there) + EPS) if is_normalized else (0.0, 1.0)
    expected = [0.0 if math.isnan(x) else (x - mean) / spread for x in raw]
    found = rloo_advantages(torch.tensor(TOTALS), GROUP, is_normalized=is_normalized).tolist()
    assert found == pytest.approx(expected, **ARITHMETIC)
    assert any(found)


def test_a_sum_leaves_out_what_is_not_there() -> None:
    rewards = torch.tensor([[1.0, NAN, 2.0], [NAN, NAN, NAN], [0.5, 1.0, 0.0]])
    found = summed(rewards, torch.tensor([1.0, 10.0, -0.5])).tolist()
    assert found[0] == 0.0
    assert math.isnan(found[1])
    assert found[2] == 10.5
