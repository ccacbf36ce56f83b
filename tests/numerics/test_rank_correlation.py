"""Kendall's tau-b against scipy, and by hand; which answers are the best, with ties and gaps."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import kendalltau

from rlhf_cli.numerics.calibration import best_changes, kendall_tau_b

NAN = float("nan")


def test_tau_b_is_scipys_with_ties_and_without() -> None:
    generator = torch.Generator().manual_seed(0)
    first = torch.randint(0, 4, (60,), generator=generator).float()
    second = torch.randint(0, 6, (60,), generator=generator).float()
    found = kendall_tau_b(first, second, 6).tolist()
    expected = [kendalltau(first[at : at + 6], second[at : at + 6]).statistic for at in range(0, 60, 6)]
    assert found == pytest.approx(expected, abs=1e-12)
    assert len({round(value, 6) for value in found}) > 5


def test_by_hand_with_a_gap() -> None:
    """1 2 3 against 1 3 2: of three pairs two agree, one does not. The row that has no total is in none of them."""
    first, second = torch.tensor([1.0, 2.0, 3.0, 9.0]), torch.tensor([1.0, 3.0, 2.0, NAN])
    assert kendall_tau_b(first, second, 4).tolist() == pytest.approx([1 / 3])


def test_a_group_that_one_of_them_does_not_rank_has_none() -> None:
    first, second = torch.tensor([1.0, 1.0, 1.0, 2.0]), torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert math.isnan(kendall_tau_b(first, second, 2)[0])
    assert kendall_tau_b(first, second, 2)[1] == 1.0


@pytest.mark.parametrize(
    ("first", "second", "changes"),
    [
        ([1.0, 2.0, 3.0], [1.0, 2.0, 2.5], False),
        ([1.0, 2.0, 3.0], [1.0, 3.0, 2.0], True),
        ([3.0, 3.0, 1.0], [3.0, 1.0, 1.0], False),  # one of two that shared the first place
        ([3.0, 1.0, 1.0], [3.0, 3.0, 1.0], False),
        ([1.0, 1.0, 1.0], [1.0, 2.0, 3.0], False),  # all were the best
        ([3.0, 1.0, 0.0], [NAN, 1.0, 0.0], True),  # the best is left out
        ([NAN, NAN, NAN], [1.0, 2.0, 3.0], False),
    ],
)
def test_the_best(first: list[float], second: list[float], changes: bool) -> None:
    assert best_changes(torch.tensor(first), torch.tensor(second), 3).tolist() == [changes]
