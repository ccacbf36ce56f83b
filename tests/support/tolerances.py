"""How close two results must be, so that a test is green on every processor and still notices a mistake.

float32 keeps 24 bits: each operation is right to 6e-8 of its result. The last bits depend on the order of a sum and on
whether a product is rounded before it is added. The kernel chooses both, and kernels differ between processors (AVX2,
AVX-512, ARM), numbers of threads, and shapes, so also between a row alone and the same row in a batch.

The rules:

1. A claim of algebra ("the same gradient as ...", "a mask changes nothing") is tested in float64 with `assert_equal`.
   Rounding in float64 is about 1e-16 of the terms, so 1e-9 leaves room for a million of them, and any wrong formula
   misses it.
2. Where float32 must run, a tensor is compared as a whole with `assert_close`: ||a - b|| <= 1e-4 ||b||. Never compare
   element by element: an element near 0 is a difference of larger ones and has their rounding error, so a relative
   bound per element fails, and an absolute one does not know the tensor's size. Both sides of the comparison must come
   from a computation whose terms are not much larger than its result.
3. Plain numbers (a mean, a logged loss, a handful of rewards) are compared with pytest.approx and one of the bounds
   below.
4. Bit for bit equality (`==`, torch.equal) is for the same computation on the same shapes twice in one process, for a
   tensor that was written and read, and for numbers so few and round (1, 0.5, 3/4) that no operation rounds.

A test that compares within a bound has a negative control: without the part that it tests, it misses the bound by far.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

ARITHMETIC: dict[str, Any] = {"rel": 1e-5, "abs": 1e-5}
"""Plain numbers from a few operations on numbers of a few units: rewards that are weighted and added, a group's mean.

n numbers added in any order are right to n 6e-8 of the sum of their sizes: 5e-6 for sixteen that sum to five.
"""

MODEL: dict[str, Any] = {"rel": 1e-4, "abs": 1e-5}
"""Plain numbers from a model's forward pass: a score, a value, a log-probability, a loss.

The models here have a layer or two of width 16 and 258 tokens: sums of a few hundred numbers one after another, and
at the end a difference of log-probabilities of about 5, which are right to 5e-7 at best. With several sets of kernels
the results differ by 1e-6 to 3e-6; this allows a few times as much.
"""

EXACT, FLOAT32 = 1e-9, 1e-4
"""The allowed ||a - b|| / ||b|| in float64 and in float32.

A gradient of the models here is 1e-5 of its norm from the exact one in float32, on AVX2 and on AVX-512 alike.
"""


def distance(found: Tensor, expected: Tensor) -> float:
    """||found - expected|| / ||expected|| of two tensors of one shape; 0 where both are 0."""
    assert found.shape == expected.shape, f"{tuple(found.shape)}, expected {tuple(expected.shape)}"
    ours, theirs = found.detach().double(), expected.detach().double()
    assert ours.isfinite().all(), "not all numbers are finite"
    assert theirs.isfinite().all(), "not all expected numbers are finite"
    difference, size = float((ours - theirs).norm()), float(theirs.norm())
    return difference / size if size else float("inf") if difference else 0.0


def assert_close(found: Tensor, expected: Tensor, *, within: float = FLOAT32) -> None:
    """Assert that two tensors are equal as a whole, up to the rounding of float32."""
    off = distance(found, expected)
    assert off <= within, f"off by {off:.2g} of the norm, allowed is {within:g}"


def assert_scores(found: Sequence[float], expected: Sequence[float], *, within: float = FLOAT32) -> None:
    """Assert the same of a model's scores in lists."""
    ours, theirs = (torch.tensor(scores, dtype=torch.float64) for scores in (found, expected))
    assert_close(ours, theirs, within=within)


def assert_equal(found: Tensor, expected: Tensor) -> None:
    """Assert that two float64 tensors are equal up to rounding."""
    assert found.dtype == expected.dtype == torch.float64, f"{found.dtype} and {expected.dtype} are not float64"
    assert_close(found, expected, within=EXACT)


def as_one(tensors: Iterable[Tensor]) -> Tensor:
    """All numbers of several tensors in one: a gradient of a whole model."""
    return torch.cat([one.detach().flatten() for one in tensors])
