"""Whitened advantages and explained variance, by hand and on two ranks against the whole."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from rlhf_cli.numerics.gae import explained_variance, whiten
from tests.numerics.ragged_batches import NAN, assert_close, ragged

MASK = torch.tensor([[1, 1, 0, 1], [0, 1, 1, 0]], dtype=torch.bool)


def test_whiten_by_hand() -> None:
    """1, 2, 3, 6, 8: mean 4, squares 9 + 4 + 1 + 4 + 16 = 34, over n - 1 = 4: 8.5."""
    values = torch.tensor([[1.0, 2.0, NAN, 3.0], [99.0, 6.0, 8.0, NAN]], dtype=torch.float64)
    whitened, mean, std = whiten(values, MASK)
    root = math.sqrt(8.5 + 1e-8)
    expected = [[-3 / root, -2 / root, 0, -1 / root], [0, 2 / root, 4 / root, 0]]
    assert_close(whitened, torch.tensor(expected, dtype=torch.float64))
    assert float(mean) == pytest.approx(4.0)
    assert float(std) == pytest.approx(math.sqrt(8.5))


def test_whiten_holds_where_the_mean_dwarfs_the_deviation() -> None:
    """Two passes: the one-pass E[x^2] - E[x]^2 in float32 gives nothing like it, and neither does a float32 mean."""
    values = torch.tensor([[4096.25, 4096.5, 0.0, 4096.75], [0.0, 4096.25, 4096.5, 0.0]])
    kept = [4096.25, 4096.5, 4096.75, 4096.25, 4096.5]
    assert float(whiten(values, MASK)[2]) == pytest.approx(statistics.stdev(kept), rel=1e-6)
    inside = values[MASK]
    one_pass = ((inside**2).mean() - inside.mean() ** 2) * 5 / 4
    assert abs(float(one_pass) - statistics.variance(kept)) > 0.02


def ranks(
    function: Callable[..., Any], parts: list[tuple[Tensor, ...]], sums: list[list[Tensor]] | None = None
) -> list[Any]:
    """`function` on each rank's part, with what the ranks would tell one another: each call is replayed until the sums
    of all its steps are known."""
    sums = sums or []

    class NotYet(Exception):
        pass

    told: list[Tensor] = []

    def sum_over_ranks(mine: Tensor) -> Tensor:
        assert mine.dim() == 1
        step = next(steps)
        if step < len(sums):
            return torch.stack(sums[step]).sum(0)
        told.append(mine)
        raise NotYet

    results = []
    for part in parts:
        steps = iter(range(99))
        try:
            results.append(function(*part, sum_over_ranks))
        except NotYet:
            continue
    return results if len(results) == len(parts) else ranks(function, parts, [*sums, told])


@pytest.mark.parametrize("cut", [0, 3, 11])
def test_two_ranks_are_the_whole(cut: int) -> None:
    batch = ragged(1)
    values, returns = batch.values, batch.rewards + batch.values
    whole = whiten(values, batch.is_action)
    halves = ranks(whiten, [(values[:cut], batch.is_action[:cut]), (values[cut:], batch.is_action[cut:])])
    assert_close(torch.cat([half[0] for half in halves]), whole[0])
    for half in halves:
        assert_close(half[1:], whole[1:])
    everything = (values, returns, batch.is_action)
    parts = [tuple(one[:cut] for one in everything), tuple(one[cut:] for one in everything)]
    for found in ranks(explained_variance, parts):
        assert_close(found, explained_variance(*everything))
    if cut == 3:  # control: each rank by itself is something else
        alone = torch.cat([whiten(values[:3], batch.is_action[:3])[0], whiten(values[3:], batch.is_action[3:])[0]])
        assert (alone - whole[0]).abs().max() > 0.05


def test_whiten_of_fewer_than_two() -> None:
    values = torch.tensor([[3.0, NAN]])
    assert [one.tolist() for one in whiten(values, torch.tensor([[False, False]]))] == [[[0.0, 0.0]], 0.0, 0.0]
    assert [one.tolist() for one in whiten(values, torch.tensor([[True, False]]))] == [[[0.0, 0.0]], 3.0, 0.0]


def test_whiten_of_two() -> None:
    """1 and 3 around 2: the squares sum to 2, over n - 1 = 1."""
    whitened, mean, std = whiten(torch.tensor([[1.0, NAN, 3.0]]), torch.tensor([[True, False, True]]))
    assert whitened.tolist() == [pytest.approx([-(0.5**0.5), 0.0, 0.5**0.5])]
    assert (float(mean), float(std)) == (2.0, pytest.approx(2**0.5))


@pytest.mark.parametrize(
    ("mask", "message"), [(torch.ones(2, 4), "not bool"), (MASK[:1], r"not one \(B, T\)"), (MASK[0], "not one")]
)
def test_a_mask_that_is_none_is_refused(mask: Tensor, message: str) -> None:
    values = torch.ones(2, 4)
    with pytest.raises(ValueError, match=message):
        whiten(values, mask)
    with pytest.raises(ValueError, match=message):
        explained_variance(values, values, mask)
    if mask.dtype == torch.bool:
        with pytest.raises(ValueError, match=message):
            explained_variance(values[: mask.shape[0]] if mask.dim() == 2 else values[0], values, mask)


def test_explained_variance_by_hand() -> None:
    returns = torch.tensor([[1.0, 2.0, NAN, 3.0], [NAN, 6.0, 8.0, NAN]])
    value = partial(explained_variance, returns=returns, mask=MASK)
    assert float(value(returns)) == 1.0
    assert float(value(returns + 5.0)) == 1.0  # a constant error is the bias, not the variance
    assert float(value(torch.full_like(returns, 7.0))) == 0.0
    assert float(value(returns / 2)) == pytest.approx(0.75)
    assert float(value(-returns)) == pytest.approx(-3.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_to_explain_is_nan(dtype: torch.dtype) -> None:
    constant = torch.full((2, 4), 0.1, dtype=dtype)
    assert explained_variance(torch.randn(2, 4, dtype=dtype), constant, MASK).isnan()
    assert explained_variance(constant, constant, torch.zeros_like(MASK)).isnan()
    barely = constant.clone()
    barely[0, 0] += 1e-6
    assert float(explained_variance(barely, barely, MASK)) == 1.0


def test_what_rounding_leaves_of_a_constant_is_nothing_to_explain() -> None:
    """0.1 three times has the mean 0.10000000000000002 in float64; 1e-10 of it is a difference all the same."""
    mask = torch.ones(1, 3, dtype=torch.bool)
    constant = torch.full((1, 3), 0.1, dtype=torch.float64)
    assert (0.1 + 0.1 + 0.1) / 3 != 0.1
    assert explained_variance(torch.randn(1, 3, dtype=torch.float64), constant, mask).isnan()
    differing = constant * torch.tensor([[1.0, 1.0, 1.0 + 1e-10]], dtype=torch.float64)
    assert float(explained_variance(differing, differing, mask)) == 1.0
