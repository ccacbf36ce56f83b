"""Test that tensors are compared by the rules of tests/support/tolerances.py, which hold on every processor."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.support.tolerances import assert_close, assert_equal, distance

TESTS = Path(__file__).parents[1]
BY_ELEMENT = re.compile(r"\btesting\.assert_(close|allclose)\(|\ballclose\(")


def test_no_test_compares_tensors_element_by_element() -> None:
    """An element near 0 is a difference of larger ones, so its rounding differs between processors. This file does."""
    files = {str(path.relative_to(TESTS)): path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py")}
    assert len(files) > 300
    assert [name for name, text in files.items() if BY_ELEMENT.search(text)] == ["house/test_tolerances.py"]
    assert BY_ELEMENT.search("assert numpy.allclose(a, b)")


def test_a_tensor_is_compared_as_a_whole() -> None:
    """A gradient summed in two orders in float32, with one element almost 0 in both."""
    found, expected = torch.tensor([3.0, -4.0, 1e-7]), torch.tensor([3.0, -4.0, 6e-7])
    assert_close(found, expected)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-8)
    assert distance(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 5.0])) == pytest.approx(1 / 34**0.5)


@pytest.mark.parametrize(
    "found",
    [
        torch.tensor([3.0, -4.001]),  # 2e-4 of the norm
        torch.tensor([3.0, float("nan")]),
        torch.tensor([[3.0, -4.0]]),
        torch.zeros(2),
    ],
)
def test_what_is_not_close(found: torch.Tensor) -> None:
    with pytest.raises(AssertionError):
        assert_close(found, torch.tensor([3.0, -4.0]))


def test_where_nothing_is_expected_nothing_may_come() -> None:
    """Zero has no norm to compare with."""
    assert distance(torch.zeros(2), torch.zeros(2)) == 0
    assert distance(torch.full((2,), 1e-30), torch.zeros(2)) == float("inf")


def test_equality_is_of_float64() -> None:
    exact = torch.tensor([3.0, -4.0], dtype=torch.float64)
    assert_equal(exact * (1 + 1e-12), exact)
    for other in (exact * (1 + 1e-8), exact.float()):
        with pytest.raises(AssertionError):
            assert_equal(other, exact)
