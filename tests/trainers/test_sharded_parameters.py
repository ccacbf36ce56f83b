"""What is read of a parameter that ZeRO-3 keeps in shards: it is empty, `ds_tensor` the shard, `ds_numel` the whole."""

from __future__ import annotations

import pytest
import torch

from rlhf_cli.trainers.guard_mixin import _are_finite, num_elements, own_shard


def as_zero_3_has_it(shard: list[float], *, num_ranks: int) -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(torch.empty(0))
    parameter.ds_tensor = torch.tensor(shard)
    parameter.ds_numel = len(shard) * num_ranks
    return parameter


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_bad_weight_in_the_shard_is_found(value: float) -> None:
    assert not _are_finite([as_zero_3_has_it([1.0, value], num_ranks=2)])
    assert _are_finite([as_zero_3_has_it([1.0, 2.0], num_ranks=2)])


def test_the_size_is_that_of_the_whole() -> None:
    assert num_elements(as_zero_3_has_it([1.0, 2.0, 3.0], num_ranks=2)) == 6


def test_what_is_in_no_shards_is_as_it_is() -> None:
    whole = torch.nn.Parameter(torch.ones(2, 3))
    assert own_shard(whole) is whole
    assert num_elements(whole) == 6
