"""Rows that a policy excludes have no total and no part in a fill or in a deviation."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
import torch
from torch import Tensor

from rlhf_cli.rewards.stack.reward_matrix import Settled
from tests.support.settled_columns import NAN, Case, Rule, column

LEFT_OUT = torch.tensor([False, True, False, False, False, True, False, False])
RAW = (1.0, 900.0, 4.0, 3.0, 10.0, -900.0, 30.0, 80.0)
"""Two groups of four; the second row of each is left out, and would be seen in any mean it were in."""


def settled(*, fixed: Tensor | None = None, left_out: Tensor | None = LEFT_OUT, **rules: Any) -> tuple[Settled, Case]:
    """A reward with rules beside one that is 1 everywhere."""
    nothing = column(*[NAN] * len(RAW))
    case = Case(
        [column(*RAW), torch.ones(len(RAW), dtype=torch.float64)],
        [Rule("one", **rules), Rule("other")],
        [1.0, 1.0],
        [nothing if fixed is None else fixed, nothing],
        is_left_out=left_out,
    )
    return case.settle(), case


def test_they_have_no_score_and_show_what_they_had() -> None:
    found, _ = settled()
    assert found.is_unscorable.tolist() == LEFT_OUT.tolist()
    assert found.totals.isnan().tolist() == LEFT_OUT.tolist()
    assert found.raw[:, 0].tolist() == list(RAW)
    assert not settled(left_out=None)[0].totals.isnan().any()  # negative control


@pytest.mark.parametrize("number", [0.0, -5.0])
def test_a_closed_gates_number_does_not_include_an_excluded_row(number: float) -> None:
    """The gates of rows 1 and 2 are closed: row 1 is left out all the same, and row 2 is not."""
    fixed = column(NAN, number, number, *[NAN] * 5)
    found, _ = settled(fixed=fixed)
    assert found.unfilled[1].isnan().all()
    assert found.totals.isnan().tolist() == LEFT_OUT.tolist()
    assert found.totals[2] == number + 1.0
    back, _ = settled(fixed=fixed, left_out=None)
    assert back.totals[1] == number + 1.0  # negative control


@pytest.mark.parametrize(
    ("normalize", "spans"),
    [
        ("group", [((1.0, 4.0, 3.0), (0, 4)), ((10.0, 30.0, 80.0), (4, 8))]),
        ("batch", [((1.0, 4.0, 3.0, 10.0, 30.0, 80.0), (0, 8))]),
        ("running", [((1.0, 4.0, 3.0, 10.0, 30.0, 80.0), (0, 8))]),
    ],
)
def test_they_are_in_no_deviation(normalize: str, spans: list[tuple[tuple[float, ...], tuple[int, int]]]) -> None:
    """statistics.stdev, with n - 1, of the other rows; with the 900s it would be in the hundreds."""
    found, case = settled(normalize=normalize)
    for kept, (start, end) in spans:
        divisor = statistics.stdev(kept)
        expected = [value / divisor + 1.0 for row, value in enumerate(RAW[start:end], start) if not LEFT_OUT[row]]
        rows = [row for row in range(start, end) if not LEFT_OUT[row]]
        assert found.totals[rows].tolist() == pytest.approx(expected, rel=1e-12)
    if normalize == "running":
        assert case.running["one"].count == 6
    with_all, _ = settled(normalize=normalize, left_out=None)
    assert with_all.divisors[0, 0] > 100  # negative control


def test_they_are_in_no_fill() -> None:
    """In the first group the reward applies to 1 and 3 beside the row that is left out: the gap is filled with 2."""
    raw = column(1.0, 900.0, NAN, 3.0, *RAW[4:])
    case = Case([raw, torch.ones(8, dtype=torch.float64)], [Rule("one"), Rule("other")], [1.0, 1.0])
    case.is_left_out = LEFT_OUT
    assert case.settle().effective[2, 0] == 2.0
    case.is_left_out = None
    assert case.settle().effective[2, 0] == pytest.approx((1 + 900 + 3) / 3)  # negative control
