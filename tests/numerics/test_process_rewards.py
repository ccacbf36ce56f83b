"""Process advantages: by hand, against loops over Python floats, and where they reduce to TRL's outcome advantages."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from torch import Tensor

from rlhf_cli.numerics.group_advantages import Scale, process_advantages

EPS = 1e-4


def oracle(values: Tensor, is_rewarded: Tensor, num_generations: int, scale: Scale) -> list[list[float]]:
    """DeepSeekMath 4.1.3 as sums over positions, in Python's floats."""
    rows = [
        {t: float(v) for t, (v, r) in enumerate(zip(one, there, strict=True)) if r}
        for one, there in zip(values.tolist(), is_rewarded.tolist(), strict=True)
    ]
    everything = [value for row in rows for value in row.values()]
    advantages = []
    for number, row in enumerate(rows):
        first = number - number % num_generations
        group = [value for other in rows[first : first + num_generations] for value in other.values()]
        mean = statistics.fmean(group) if group else 0.0
        over = group if scale == "group" else everything
        std = statistics.stdev(over) if len(over) > 1 else 0.0
        divisor = 1.0 if scale == "none" else std + EPS
        advantages.append([math.fsum((row[j] - mean) / divisor for j in row if j >= t) for t in range(values.shape[1])])
    return advantages


def ragged(seed: int, share: float = 0.4) -> tuple[Tensor, Tensor]:
    """(12, 9) values and True = rewarded; rows of different lengths, some groups and rows without anything."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(12, 9, generator=generator, dtype=torch.float64) * 3 + 1
    lengths = torch.randint(0, 10, (12, 1), generator=generator)
    is_rewarded = (torch.rand(12, 9, generator=generator) < share) & (torch.arange(9) < lengths)
    return values.masked_fill(~is_rewarded, math.nan), is_rewarded


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("num_generations", [1, 2, 4, 12])
@pytest.mark.parametrize("seed", range(3))
def test_oracle(seed: int, num_generations: int, scale: Scale) -> None:
    values, is_rewarded = ragged(seed, share=(0.05, 0.4, 1.0)[seed % 3])
    found = process_advantages(values, is_rewarded, num_generations, scale)
    expected = torch.tensor(oracle(values, is_rewarded, num_generations, scale), dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    single = process_advantages(values.float(), is_rewarded, num_generations, scale)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, rtol=1e-4, atol=1e-4)


def test_controls_the_oracle_sees_each_part() -> None:
    """With a part of the formula left out, the numbers above are missed by far."""
    values, is_rewarded = ragged(1)
    expected = torch.tensor(oracle(values, is_rewarded, 4, "group"))
    clean = values.nan_to_num()
    mean = clean.sum(1, keepdim=True) / is_rewarded.sum(1, keepdim=True).clamp(min=1)
    without = {
        "group (a row's own mean)": process_advantages(values, is_rewarded, 1, "group"),
        "division": process_advantages(values, is_rewarded, 4, "none"),
        "centring": clean.flip(1).cumsum(1).flip(1),
        "the future (only now)": (clean - mean).where(is_rewarded, 0.0),
        "the mask (0 counts as a value)": process_advantages(clean, torch.ones_like(is_rewarded), 4, "group"),
        "direction (the past)": process_advantages(values.flip(1), is_rewarded.flip(1), 4, "group").flip(1),
    }
    for name, wrong in without.items():
        assert (wrong - expected).abs().max() > 0.1, name


def test_by_hand() -> None:
    """Two completions, R = {1, 3, 0, 0}: mean 1, std sqrt(6/3) = sqrt 2. None and 0 differ: the 0s are of R."""
    values = torch.tensor([[9.0, 1.0, 9.0, 3.0, 9.0], [0.0, 9.0, 0.0, 9.0, 9.0]], dtype=torch.float64)
    is_rewarded = torch.tensor([[0, 1, 0, 1, 0], [1, 0, 1, 0, 0]], dtype=torch.bool)
    a, b = 0 / math.sqrt(2), 2 / math.sqrt(2)
    c = -1 / math.sqrt(2)
    expected = torch.tensor([[a + b, a + b, b, b, 0], [c + c, c, c, 0, 0]], dtype=torch.float64)
    found = process_advantages(values, is_rewarded, 2, "group", eps=0.0)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    undivided = process_advantages(values, is_rewarded, 2, "none")
    assert undivided.tolist() == [[2, 2, 2, 2, 0], [-2, -1, -1, 0, 0]]


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_reward_at_the_last_token_is_the_outcome_advantage(scale: Scale) -> None:
    """TRL 1.16: (r - mean of the group) / (std + 1e-4), std unbiased, of the group or of the batch; for every token."""
    generator = torch.Generator().manual_seed(3)
    rewards = torch.randn(8, generator=generator, dtype=torch.float64)
    lengths = torch.tensor([1, 6, 3, 4, 2, 6, 5, 5])
    is_rewarded = torch.arange(6) == lengths[:, None] - 1
    values = rewards[:, None].expand(8, 6)
    centred = rewards - rewards.view(2, 4).mean(1).repeat_interleave(4)
    std = {"group": rewards.view(2, 4).std(1).repeat_interleave(4), "batch": rewards.std()}.get(scale)
    outcome = centred if std is None else centred / (std + 1e-4)
    found = process_advantages(values, is_rewarded, 4, scale)
    mask = torch.arange(6) < lengths[:, None]
    torch.testing.assert_close(found, outcome[:, None] * mask, rtol=1e-12, atol=1e-12)
    # Control: one more rewarded position, be it of value 0, and it is no longer.
    more = is_rewarded.clone()
    more[1, 0] = True
    assert not torch.allclose(process_advantages(values, more, 4, scale), outcome[:, None] * mask)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_nothing_to_compare_with(scale: Scale) -> None:
    values = torch.tensor([[5.0, 0.0], [0.0, 0.0], [1.0, 2.0], [0.0, 0.0], [7.0, 7.0], [0.0, 7.0]])
    is_rewarded = torch.tensor([[1, 0], [0, 0], [1, 1], [0, 0], [1, 1], [0, 1]], dtype=torch.bool)
    found = process_advantages(values, is_rewarded, 2, scale)
    assert found[:2].tolist() == [[0, 0], [0, 0]]  # a single position
    assert found[2, 1] > 0.1  # control: two different ones are compared
    assert found[3].tolist() == [0, 0]  # a row without any
    assert found[4:].abs().max() == 0  # all equal
    nothing = process_advantages(values, torch.zeros_like(is_rewarded), 2, scale)
    assert nothing.tolist() == torch.zeros(6, 2).tolist()
