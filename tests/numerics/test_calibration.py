"""Calibration and rank correlation of scores, by hand and against SciPy."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import kendalltau

from rlhf_cli.numerics.calibration import (
    best_changes,
    brier,
    expected_calibration_error,
    kendall_tau_b,
    log_loss,
    reliability,
)


def logit(p: float) -> float:
    return math.log(p / (1 - p))


def test_calibration_by_hand() -> None:
    """Confidences 0.62 (right), 0.62 (wrong) and 0.93 (right, right): accuracies 0.5 and 1.

    ECE = 2/4 |0.5 - 0.62| + 2/4 |1 - 0.93| = 0.06 + 0.035.
    """
    difference = torch.tensor([logit(0.62), -logit(0.62), logit(0.93), logit(0.93)], dtype=torch.float64)
    bins = reliability(difference, 5)
    assert bins.low.tolist() == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.9])
    assert bins.count.tolist() == [0, 2, 0, 0, 2]
    assert bins.right.tolist() == [0, 1, 0, 0, 2]
    assert bins.accuracy[[1, 4]].tolist() == [0.5, 1.0]
    assert bins.confidence[[1, 4]].tolist() == pytest.approx([0.62, 0.93])
    assert expected_calibration_error(bins) == pytest.approx(0.095)
    assert brier(difference) == pytest.approx((0.38**2 + 0.62**2 + 2 * 0.07**2) / 4)
    assert log_loss(difference) == pytest.approx(-(math.log(0.62) + math.log(0.38) + 2 * math.log(0.93)) / 4)


def test_a_bin_holds_its_lower_edge_and_the_last_one_both() -> None:
    """Two bins, [1/2, 3/4) and [3/4, 1]: confidence 3/4, of a difference of log 3, lies in the second."""
    edge = torch.tensor([math.log(3)], dtype=torch.float64)
    assert torch.sigmoid(edge).tolist() == [0.75]  # to the last bit, or this test would say nothing
    assert reliability(edge, 2).count.tolist() == [0, 1]
    assert reliability(torch.tensor([0.0, 1000.0]), 2).count.tolist() == [1, 1]
    assert reliability(edge, 2).high.tolist() == [0.75, 1.0]
    ten = reliability(torch.tensor([0.0]))
    assert (ten.count.tolist(), ten.right.tolist()) == ([1.0, *[0.0] * 9], [0.5, *[0.0] * 9])
    assert ten.confidence[0] == 0.5
    assert ten.confidence[1:].isnan().all()


NAN = float("nan")


def test_tau_b_is_scipys_with_ties_and_gaps() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randint(0, most, (60,), generator=generator).float() for most in (4, 6))
    expected = [kendalltau(first[at : at + 6], second[at : at + 6]).statistic for at in range(0, 60, 6)]
    assert kendall_tau_b(first, second, 6).tolist() == pytest.approx(expected, abs=1e-12)
    assert len({round(value, 6) for value in expected}) > 5
    first, second = torch.tensor([3.0, 1.0, NAN, 2.0, 0.0]), torch.tensor([1.0, 2.0, 5.0, 3.0, NAN])
    assert kendall_tau_b(first, second, 5).tolist() == pytest.approx([kendalltau([3, 1, 2], [1, 2, 3]).statistic])
    assert kendall_tau_b(torch.ones(2), first[:2], 2).isnan().all()  # one of them does not rank the group


@pytest.mark.parametrize(
    ("first", "second", "changes"),
    [
        ([1.0, 2.0, 3.0], [1.0, 2.0, 2.5], False),
        ([1.0, 2.0, 3.0], [1.0, 3.0, 2.0], True),
        ([3.0, 3.0, 1.0], [3.0, 1.0, 1.0], False),  # one of two that shared the first place
        ([1.0, 1.0, 1.0], [1.0, 2.0, 3.0], False),  # all were the best
        ([3.0, 1.0, 0.0], [NAN, 1.0, 0.0], True),  # the best is left out
        ([NAN, NAN, NAN], [1.0, 2.0, 3.0], False),
    ],
)
def test_the_best(first: list[float], second: list[float], changes: bool) -> None:
    assert best_changes(torch.tensor(first), torch.tensor(second), 3).tolist() == [changes]
