"""Compute the penalty of a completion that approaches the length limit. Tensors in, tensors out."""

from __future__ import annotations

from torch import Tensor


def soft_overlong(lengths: Tensor, max_completion_length: int, cache_tokens: int) -> Tensor:
    """Return DAPO's soft overlong punishment (arXiv 2503.14476, eq. 13).

        0                                where length <= max - cache
        ((max - cache) - length) / cache where max - cache < length <= max
        -1                               where max < length

    Args:
        lengths: (N,), tokens of each completion.
        max_completion_length: the length at which a completion is truncated.
        cache_tokens: in 1 .. max_completion_length, the last tokens before it, over which the punishment grows.

    Returns:
        (N,) float in [-1, 0].
    """
    if not 1 <= cache_tokens <= max_completion_length:
        raise ValueError(f"cache_tokens is {cache_tokens}, not in 1 .. {max_completion_length} (the maximal length)")
    return ((max_completion_length - cache_tokens - lengths) / cache_tokens).clamp(-1.0, 0.0)
