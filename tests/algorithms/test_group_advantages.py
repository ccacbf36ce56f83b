"""Parts of advantages add up to TRL's own, whose formulas are written here anew in numpy; shares are what they say."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from rlhf_cli.algorithms.base import SAME, GroupAlgorithm, shares, summed
from rlhf_cli.algorithms.grpo import Grpo, ProcessRewards, Scale
from rlhf_cli.algorithms.rloo import Rloo, scores_to_leave_out
from rlhf_cli.rewards.stack.reward_matrix import filled
from tests.support.tolerances import assert_close, assert_equal, distance

pytestmark = pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:Degrees of freedom")
Array = Any
NAN = float("nan")
GROUP = 4


def totals(matrix: Array) -> Array:
    """TRL: the row's sum, NaN where every reward is."""
    summed = numpy.nansum(matrix, axis=1)
    summed[numpy.isnan(matrix).all(axis=1)] = NAN
    return summed


def grpo(matrix: Array, scale: str) -> Array:
    """grpo_trainer.py, sum_then_normalize."""
    rewards = totals(matrix)
    grouped = rewards.reshape(-1, GROUP)
    advantages = rewards - numpy.nanmean(grouped, axis=1).repeat(GROUP)
    if scale == "group":
        advantages = advantages / (numpy.nanstd(grouped, axis=1, ddof=1).repeat(GROUP) + 1e-4)
    elif scale == "batch":
        advantages = advantages / (numpy.nanstd(rewards, ddof=1) + 1e-4)
    return numpy.nan_to_num(advantages, nan=0.0)


def rloo(matrix: Array, is_normalized: bool) -> Array:
    """rloo_trainer.py without KL."""
    grouped = totals(matrix).reshape(-1, GROUP)
    count = (~numpy.isnan(grouped)).sum(axis=1, keepdims=True)
    with numpy.errstate(invalid="ignore", divide="ignore"):
        baselines = (numpy.nansum(grouped, axis=1, keepdims=True) - grouped) / (count - 1)
    advantages = (grouped - baselines).reshape(-1)
    if is_normalized:
        advantages = (advantages - numpy.nanmean(advantages)) / (numpy.nanstd(advantages, ddof=1) + 1e-4)
    return numpy.nan_to_num(advantages, nan=0.0)


Way = tuple[GroupAlgorithm, Callable[[Array], Array]]
WAYS: dict[str, Way] = {
    "grpo group": (Grpo("group"), lambda m: grpo(m, "group")),
    "grpo batch": (Grpo("batch"), lambda m: grpo(m, "batch")),
    "grpo none": (Grpo("none"), lambda m: grpo(m, "none")),
    "rloo": (Rloo(), lambda m: rloo(m, False)),
    "rloo normalised": (Rloo(is_normalized=True), lambda m: rloo(m, True)),
}
each_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def random_matrix(seed: int, *, excluded: float = 0.0, unscorable: float = 0.0) -> Tensor:
    """(20, 5) weighted rewards of 5 groups, excluded entries filled as the stack does, some rows NaN throughout."""
    random = numpy.random.default_rng(seed)
    matrix = random.normal(0.0, [1.0, 10.0, 0.1, 1.0, 3.0], (20, 5)) + random.normal(0.0, 5.0, 5)
    matrix[random.random((20, 5)) < excluded] = NAN
    matrix[random.random(20) < unscorable] = NAN
    return filled(torch.from_numpy(matrix), GROUP) * torch.tensor([1.0, -0.5, 2.0, 0.0, 0.3], dtype=torch.float64)


NAMES = list("abcde")


@each_way
@pytest.mark.parametrize(("excluded", "unscorable"), [(0.0, 0.0), (0.3, 0.0), (0.0, 0.3), (0.3, 0.3), (0.2, 0.8)])
@pytest.mark.parametrize("seed", range(2))
def test_parts_add_up_to_trls_advantages_and_shares_to_one(
    way: Way, seed: int, excluded: float, unscorable: float
) -> None:
    algorithm, oracle = way
    matrix = random_matrix(seed, excluded=excluded, unscorable=unscorable)
    expected = torch.from_numpy(oracle(matrix.numpy()))
    parts = algorithm.parts(matrix, GROUP)
    assert_equal(parts.sum(dim=1), expected)
    assert_equal(algorithm.advantages(summed(matrix), GROUP), expected)
    assert parts[matrix.isnan().all(dim=1)].abs().sum() == 0.0
    found = algorithm.shares(NAMES, matrix, expected, GROUP)
    assert bool(found) == bool(expected.any())
    if found:
        assert sum(found.values()) == pytest.approx(1.0, abs=1e-9)
        assert found["d"] == pytest.approx(0.0, abs=1e-12)  # its weight is 0


def shares_of(way: Way, *columns: Tensor) -> dict[str, float]:
    matrix = torch.stack(columns, dim=1)
    return way[0].shares(NAMES[: len(columns)], matrix, torch.from_numpy(way[1](matrix.numpy())), GROUP)


@each_way
def test_duplicates_share_half_each_and_a_constant_nothing(way: Way) -> None:
    """There are no shares if every advantage is 0."""
    one = torch.randn(8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = shares_of(way, one, one, torch.full_like(one, 7.0))
    assert list(found.values()) == pytest.approx([0.5, 0.5, 0.0], abs=1e-9)
    assert shares_of(way, torch.ones_like(one), torch.full_like(one, 2.0)) == {}


@each_way
def test_other_advantages_than_the_trainers_exceed_the_check(way: Way) -> None:
    """In float32, and in a group of nearly equal totals, whose rounding errors GRPO divides by 1e-4."""
    totals = random_matrix(0).sum(dim=1).float()
    totals[:GROUP] = 1.68572
    advantages = way[0].advantages(totals, GROUP)
    logged = advantages.tolist()
    assert way[0].excess(advantages, totals, GROUP, logged) <= 0
    for times, exceeds in ((0.1, False), (10, True)):
        other = advantages.clone()
        other[-1] += times * SAME * advantages.abs().max()
        assert bool(way[0].excess(other, totals, GROUP, logged) > 0) is exceeds
    assert way[0].excess(2 * advantages.abs(), totals, GROUP, logged) > 0


MATRIX = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0], [0.0, 0.0]])


def test_shares_by_hand() -> None:
    """Totals 1, 2, 0, 0 around 3/4. a's parts are 3/4, -1/4, -1/4, -1/4: with the advantages 4/16; b's 3/2 and three
    times -1/2: 40/16; of 44/16. RLOO's parts are 4/3 of them; what is missing to 1 is the share of the KL.
    """
    advantages = torch.tensor([0.25, 1.25, -0.75, -0.75])
    a, b = 4 / 44, 40 / 44
    assert Grpo("none").shares("ab", MATRIX, advantages, 4) == {"a": pytest.approx(a), "b": pytest.approx(b)}
    found = Rloo(kl_coef=0.1).shares("ab", MATRIX, advantages, 4)
    assert found == {"a": pytest.approx(4 / 3 * a), "b": pytest.approx(4 / 3 * b), "kl": pytest.approx(-1 / 3)}
    assert list(Rloo().shares("ab", MATRIX, advantages, 4)) == ["a", "b"]


def test_a_kl_must_sum_to_0_and_equal_the_log_of_trl() -> None:
    algorithm, totals = Rloo(kl_coef=0.1), MATRIX.sum(dim=1)
    kl = algorithm.advantages(torch.tensor([0.5, 0.1, -0.2, 0.0]), 4)
    advantages = algorithm.advantages(totals, 4) + kl
    assert algorithm.excess(advantages, totals, 4, [9.0, *advantages.tolist()]) <= 0
    assert algorithm.excess(advantages, totals, 4, [9.0, *(2 * advantages).tolist()]) > 0
    assert algorithm.excess(advantages + 0.01, totals, 4, (advantages + 0.01).tolist()) > 0
    # the largest number, here 8/15, says how much is rounding; another is 0, and so are the totals
    assert algorithm.excess(kl, torch.zeros(4), 4, (kl + 2e-7).tolist()) <= 0
    rounded = kl.double() + SAME * kl.abs().max() / 2  # a group's mean is rounding, not the sum of its four
    assert algorithm.excess(rounded, torch.zeros(4), 4, rounded.tolist()) <= 0


def test_advantages_without_parts() -> None:
    for algorithm in (Grpo(), Rloo(kl_coef=0.1), Rloo(is_normalized=True)):
        assert algorithm.has_parts("sum", 4)
        assert not algorithm.has_parts(min, 4)
        assert not algorithm.has_parts("sum", 1)
    for algorithm in (Rloo(clip_range=(0.0, 1.0)), Rloo(is_normalized=True, kl_coef=0.1)):
        assert not algorithm.has_parts("sum", 4)


def test_the_worked_example_of_the_design() -> None:
    """a = 1, 0, 1, 0; b = 0.5, -, 0.1, -: under exclude b's part of rows 1 and 3 is nothing."""
    raw = torch.tensor([[1.0, 0.5], [0.0, NAN], [1.0, 0.1], [0.0, NAN]], dtype=torch.float64)
    parts = Grpo("none").parts(filled(raw, 4), 4)
    assert parts[:, 1].tolist() == pytest.approx([0.2, 0.0, -0.2, 0.0], abs=1e-12)
    assert parts.sum(dim=1).tolist() == pytest.approx([0.7, -0.5, 0.3, -0.5])
    # Each of the two rows where b applies is compared with the other one alone.
    parts = Rloo().parts(scores_to_leave_out(raw, 4), 4)
    assert parts[:, 1].tolist() == pytest.approx([0.4, 0.0, -0.4, 0.0], abs=1e-12)
    assert parts.sum(dim=1).tolist() == pytest.approx([2 / 3 + 0.4, -2 / 3, 2 / 3 - 0.4, -2 / 3])


def test_shares_of_whitened_tokens() -> None:
    """Two components over three tokens, [1, 0, 2] and [0, 1, 1], make the advantages [1, 1, 3].

    Around 5/3 these are -2/3, -2/3, 4/3: -2/3 + 8/3 = 2 and -2/3 + 4/3 = 2/3, of 8/3. Their sum is 0, which is not yet
    nothing to share. On the other rank [0, 2, 0] and [1, 0, 0] make [1, 2, 0]: 7 + 4 and 4 + 1 with those here, of 16.
    """
    parts, seen = torch.tensor([[[1.0, 0.0, 2.0]], [[0.0, 1.0, 1.0]]]), []

    def of_both(sums: Tensor) -> Tensor:
        seen.append((sums.dim(), sums.dtype))
        return sums + torch.tensor([4.0, 1.0, 5.0]).double()

    def found(parts: Tensor, advantages: Tensor, *sum_over_ranks: Callable[[Tensor], Tensor]) -> list[float]:
        return list(shares("ab", parts, advantages, *sum_over_ranks, is_whitened=True).values())

    nothing = torch.zeros(1, 3)
    assert found(parts, torch.tensor([[-2 / 3, -2 / 3, 4 / 3]]) / 1.1547) == pytest.approx([3 / 4, 1 / 4])
    assert found(parts, parts.sum(dim=0), of_both) == pytest.approx([11 / 16, 5 / 16])
    assert found(0 * parts, nothing, of_both) == pytest.approx([4 / 5, 1 / 5])  # this rank's are all 0
    assert found(parts, nothing) == []
    assert set(seen) == {(1, torch.float64)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_without_gaps_stay_the_same_bit_for_bit(dtype: torch.dtype) -> None:
    rewards = torch.randn(12, 3, generator=torch.Generator().manual_seed(0), dtype=dtype) * 1e3
    assert torch.equal(scores_to_leave_out(rewards, 4), rewards)
    rewards[5] = math.nan
    assert torch.equal(scores_to_leave_out(rewards, 4).nan_to_num(7e7), rewards.nan_to_num(7e7))
    rewards[6, 1] = math.nan  # negative control, and the other groups and components are still what they were
    found = scores_to_leave_out(rewards, 4)
    is_changed = ~torch.isclose(found, rewards, rtol=0, atol=0, equal_nan=True)
    assert is_changed.nonzero().tolist() == [[4, 1], [6, 1], [7, 1]]


# Process advantages: by hand, against loops over Python floats, and where they reduce to TRL's outcome advantages.


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
        divisor = 1.0 if scale == "none" else std + 1e-4
        advantages.append([math.fsum((row[j] - mean) / divisor for j in row if j >= t) for t in range(values.shape[1])])
    return advantages


def process(values: Tensor, is_rewarded: Tensor, num_generations: int, scale: Scale) -> Tensor:
    """Return the advantages of two rewards that give 1/4 and 3/4 of each value."""
    parts = torch.stack([0.25 * values, 0.75 * values])
    return ProcessRewards(scale).parts(parts, is_rewarded, num_generations).sum(dim=0)


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
    found = process(values, is_rewarded, num_generations, scale)
    expected = torch.tensor(oracle(values, is_rewarded, num_generations, scale), dtype=torch.float64)
    assert_equal(found, expected)
    single = process(values.float(), is_rewarded, num_generations, scale)
    assert single.dtype == torch.float32
    assert_close(single, expected)


def test_negative_controls_each_part_of_the_formula_matters() -> None:
    """With a part of the formula left out, the numbers above are missed by far."""
    values, is_rewarded = ragged(1)
    expected = torch.tensor(oracle(values, is_rewarded, 4, "group"))
    clean = values.nan_to_num()
    mean = clean.sum(1, keepdim=True) / is_rewarded.sum(1, keepdim=True).clamp(min=1)
    without = {
        "group (a row's own mean)": process(values, is_rewarded, 1, "group"),
        "division": process(values, is_rewarded, 4, "none"),
        "centring": clean.flip(1).cumsum(1).flip(1),
        "the future (only now)": (clean - mean).where(is_rewarded, 0.0),
        "the mask (0 counts as a value)": process(clean, torch.ones_like(is_rewarded), 4, "group"),
        "direction (the past)": process(values.flip(1), is_rewarded.flip(1), 4, "group").flip(1),
    }
    for name, wrong in without.items():
        assert (wrong - expected).abs().max() > 0.1, name


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
    found = process(values, is_rewarded, 4, scale)
    mask = torch.arange(6) < lengths[:, None]
    assert_equal(found, outcome[:, None] * mask)
    # Control: one more rewarded position, be it of value 0, and it is no longer.
    more = is_rewarded.clone()
    more[1, 0] = True
    assert distance(process(values, more, 4, scale), outcome[:, None] * mask) > 0.01


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_nothing_to_compare_with(scale: Scale) -> None:
    values = torch.tensor([[5.0, 0.0], [0.0, 0.0], [1.0, 2.0], [0.0, 0.0], [7.0, 7.0], [0.0, 7.0]])
    is_rewarded = torch.tensor([[1, 0], [0, 0], [1, 1], [0, 0], [1, 1], [0, 1]], dtype=torch.bool)
    found = process(values, is_rewarded, 2, scale)
    assert not found[:2].any()  # a single position
    assert found[2, 1] > 0.1  # control: two different ones are compared
    assert not found[3:].any()  # a row without any, and equal ones
    assert not process(values, torch.zeros_like(is_rewarded), 2, scale).any()
