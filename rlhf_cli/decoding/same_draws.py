"""Draw tokens for some rows of a batch with the random numbers that they would have in the whole batch.

For one sample per row, `torch.multinomial` draws an exponential number for every probability, row by row, and takes the
largest quotient (the exponential race: Efraimidis and Spirakis 2006, "Weighted random sampling with a reservoir"). A
removed row would draw no numbers, which would shift those of later rows. So this file skips its numbers: every row gets
the same ones as in the whole batch, and the generator ends in the same state.
"""

from __future__ import annotations

import torch
from torch import Tensor


def draw(probabilities: Tensor, rows: Tensor, num_rows: int) -> Tensor:
    """Return (N,) tokens drawn from (N, V) float32 `probabilities`; `rows` (N,) are ascending indices below `num_rows`.

    Raise torch's own RuntimeError if a probability is not finite.
    """
    if not probabilities.sum().isfinite():
        torch.multinomial(probabilities, num_samples=1)  # raises torch's own error
    races = _exponential(probabilities, rows, num_rows)
    torch.div(probabilities, races, out=races)  # in place: a vocabulary per row needs much memory
    return races.argmax(dim=-1)


def _exponential(like: Tensor, rows: Tensor, num_rows: int) -> Tensor:
    """Return (N, V) exponential numbers: the rows `rows` of (num_rows, V) drawn at once."""
    num_tokens = like.shape[1]
    if like.device.type != "cpu":  # an accelerator draws all of them faster than it skips some
        return like.new_empty(num_rows, num_tokens).exponential_()[rows]
    numbers = torch.empty_like(like)
    drawn, passed = 0, 0  # rows of `numbers` that are filled, rows of the batch that are passed
    for start, length in _runs(rows.tolist()):
        _pass_over((start - passed) * num_tokens)
        numbers[drawn : drawn + length].exponential_()
        drawn, passed = drawn + length, start + length
    _pass_over((num_rows - passed) * num_tokens)
    return numbers


def _pass_over(count: int) -> None:
    """Advance the generator by `count` exponential numbers: an int64 also uses 64 bits, but needs no logarithm."""
    if count:
        torch.empty(count, dtype=torch.int64).random_()


def _runs(rows: list[int]) -> list[tuple[int, int]]:
    """Return (first, number) of every run of consecutive rows."""
    starts = [row for place, row in enumerate(rows) if place == 0 or rows[place - 1] != row - 1]
    ends = [row for place, row in enumerate(rows) if place == len(rows) - 1 or rows[place + 1] != row + 1]
    return [(start, end - start + 1) for start, end in zip(starts, ends, strict=True)]
