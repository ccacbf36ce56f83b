"""DAPO's soft overlong punishment, by its equation's three branches."""

from __future__ import annotations

import pytest
import torch

from rlhf_cli.numerics.reward_columns import soft_overlong


def equation_13(length: int, longest: int, cache: int) -> float:
    if length <= longest - cache:
        return 0.0
    return ((longest - cache) - length) / cache if length <= longest else -1.0


def test_by_hand() -> None:
    """The paper's values: 20480 tokens including a cache of 4096."""
    lengths = torch.tensor([0, 1000, 16384, 16385, 18432, 20479, 20480, 30000])
    found = soft_overlong(lengths, 20480, 4096)
    assert found.tolist() == [0.0, 0.0, 0.0, -1 / 4096, -0.5, -4095 / 4096, -1.0, -1.0]


@pytest.mark.parametrize(("longest", "cache"), [(12, 1), (12, 5), (12, 12)])
def test_every_length(longest: int, cache: int) -> None:
    lengths = torch.arange(0, 2 * longest)
    expected = torch.tensor([equation_13(length, longest, cache) for length in lengths.tolist()])
    found = soft_overlong(lengths, longest, cache)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(soft_overlong(lengths.float(), longest, cache), expected)
    assert found.is_floating_point()
    assert found.diff().max() <= 0.0
    wider = soft_overlong(lengths, longest + 1, cache)
    assert not torch.equal(wider, found)  # control: the numbers tell where it begins


@pytest.mark.parametrize("cache", [0, -1, 13])
def test_refused(cache: int) -> None:
    with pytest.raises(ValueError, match=f"cache_tokens is {cache}"):
        soft_overlong(torch.tensor([1]), 12, cache)
