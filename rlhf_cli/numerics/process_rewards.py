"""Turn a group's dense rewards into advantages per token. Tensors in, tensors out."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

Scale: TypeAlias = Literal["group", "batch", "none"]
"""Divisor of the centred values: the group's deviation, the batch's, or 1."""


def process_advantages(
    values: Tensor, is_rewarded: Tensor, num_generations: int, scale: Scale, eps: float = 1e-4
) -> Tensor:
    """Return token advantages by process supervision: normalise rewarded positions over the group, sum from the end.

    DeepSeekMath (arXiv:2402.03300), section 4.1.3. With R the values at all rewarded positions of all completions of a
    group,
        r~_{i,j} = (r_{i,j} - mean(R)) / (std(R) + eps)
        A_{i,t}  = sum of r~_{i,j} over the rewarded positions j >= t of completion i

    The paper has eps = 0; eps and the unbiased std (n - 1) are those of TRL 1.16's outcome advantages
    (`GRPOTrainer._generate_and_score_completions`). This equals them if every completion is rewarded only at its last
    token. The mean is over positions instead of completions: a completion counts once per rewarded position.

    Args:
        values: (B, T), the reward at each token; entries at positions that are not rewarded (NaN, say) are not read.
        is_rewarded: (B, T) bool, True = the position is rewarded, possibly with 0. A row may have none.
        num_generations: completions in a group; rows of a group are consecutive and complete.
        scale: `group`: as above. `batch`: std over all rewarded positions of the batch, around the batch's own mean
            (the subtracted mean is still the group's). `none`: no division.
        eps: added to the std.

    Returns:
        (B, T), of `values`' dtype. 0 after a row's last rewarded position, in a row without any, and in a group with
        fewer than two of them (without comparison, the std counts as 0). Padding tokens before a rewarded position
        would have a value too: the caller must mask them.
    """
    _check(values, is_rewarded, num_generations, scale)
    groups = values.reshape(-1, num_generations * values.shape[1])
    present = is_rewarded.reshape(groups.shape)
    centred = (groups - _mean(groups, present)).where(present, 0.0)
    if scale == "group":
        centred = centred / (_std(groups, present) + eps)
    elif scale == "batch":
        centred = centred / (_std(groups.reshape(1, -1), present.reshape(1, -1)) + eps)
    return centred.reshape(values.shape).flip(1).cumsum(1).flip(1)


def _mean(values: Tensor, present: Tensor) -> Tensor:
    """Return the mean of the positions that count, (G, N) and True = counts -> (G, 1); 0 if there are none."""
    return values.where(present, 0.0).sum(1, keepdim=True) / present.sum(1, keepdim=True).clamp(min=1)


def _std(values: Tensor, present: Tensor) -> Tensor:
    """Return sqrt(sum (x - mean)^2 / (n - 1)) of the positions that count, (G, N) -> (G, 1); 0 if n < 2."""
    squares = ((values - _mean(values, present)) ** 2).where(present, 0.0)
    return (squares.sum(1, keepdim=True) / (present.sum(1, keepdim=True) - 1).clamp(min=1)).sqrt()


def _check(values: Tensor, is_rewarded: Tensor, num_generations: int, scale: str) -> None:
    if values.dim() != 2 or values.shape != is_rewarded.shape:
        raise ValueError(f"values {tuple(values.shape)} and is_rewarded {tuple(is_rewarded.shape)} are not one (B, T)")
    if is_rewarded.dtype != torch.bool:
        raise ValueError(f"is_rewarded is {is_rewarded.dtype}, not bool")
    if num_generations < 1 or values.shape[0] % num_generations:
        raise ValueError(f"{values.shape[0]} rows are not whole groups of {num_generations}")
    if scale not in get_args(Scale):
        raise ValueError(f"scale is {scale!r}, not one of {', '.join(get_args(Scale))}")
