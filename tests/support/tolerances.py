"""How near float32 results come to one another: what the arithmetic promises on any processor.

float32 keeps 24 bits, so every operation is right to 6e-8 of its result, and no nearer. Which of the last bits come out
depends on the order in which a sum is taken and on whether a product is rounded before it is added. Both are the
kernel's choice: it differs between processors (AVX2, AVX-512, ARM), between numbers of threads, and on one processor
between shapes, so between a row alone and the same row in a batch. pytest.approx's default of 1e-6 is 17 such
roundings, which a single matrix product may use up.

What is bit for bit equal anywhere is another matter, and is compared with `==` or torch.equal: the same computation on
the same shapes twice in one process, a tensor written and read again, and numbers so few and round (1, 0.5, 3/4) that
no operation rounds. float64 throughout is good for 1e-12.

A test that compares within one of these has to miss by far more than it when what it tests is left out.
"""

from __future__ import annotations

from typing import Any

ARITHMETIC: dict[str, Any] = {"rel": 1e-5, "abs": 1e-5}
"""A handful of operations on numbers of a few units: rewards weighted and added, a mean over a group, a deviation.

n numbers added in any order are right to n 6e-8 of the sum of their sizes: 5e-6 for sixteen that sum to five.
"""

MODEL: dict[str, Any] = {"rel": 1e-4, "abs": 1e-5}
"""What came out of a model's forward pass, and whatever is made of it: scores, values, log-probabilities, advantages.

The models here are a layer or two of width 16 over 258 tokens: sums of a few hundred numbers, one behind the other, and
at the end a difference of log-probabilities of about 5, which are themselves right to 5e-7 at best. Measured on
several sets of kernels the results part by 1e-6 to 3e-6; ten times that is allowed.
"""


def _of_tensors(tolerance: dict[str, Any]) -> dict[str, Any]:
    return {"rtol": tolerance["rel"], "atol": tolerance["abs"]}


ARITHMETIC_OF_TENSORS = _of_tensors(ARITHMETIC)
MODEL_OF_TENSORS = _of_tensors(MODEL)
"""The same under the names that torch.testing.assert_close and torch.allclose know them by."""
