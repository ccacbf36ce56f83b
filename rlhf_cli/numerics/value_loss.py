"""Compute the critic's loss per token. Tensors in, tensors out."""

from __future__ import annotations

import torch
from torch import Tensor


def value_losses(values: Tensor, rollout_values: Tensor, returns: Tensor, clip: float | None) -> tuple[Tensor, Tensor]:
    """Return half the squared error of the critic, with PPO2's clip around its values of the rollout.

        V_clipped = V_old + clamp(V - V_old, -clip, clip)
        loss      = 0.5 max((V - R)^2, (V_clipped - R)^2)

    This is as in OpenAI's baselines (PPO2) and `lm-human-preferences`, as listed in "The N+ implementation details of
    RLHF with PPO" (arXiv 2403.17031), and in TRL 1.12's `PPOTrainer`. Where the clipped term is larger there is no
    gradient: the critic has moved towards R as far as one rollout allows.

    Args:
        values: any shape, V of the critic in training; if the others need no gradient, only this has one.
        rollout_values: same shape, V_old of the critic at the rollout.
        returns: same shape, R.
        clip: > 0; None = no clipping.

    Returns:
        losses: same shape. The caller masks and averages them.
        is_clipped: same shape, bool, True = the clipped term is strictly larger.
    """
    if clip is not None and not clip > 0.0:
        raise ValueError(f"clip is {clip}, not above 0 (None turns clipping off)")
    squares = (values - returns) ** 2
    if clip is None:
        return 0.5 * squares, torch.zeros_like(squares, dtype=torch.bool)
    held = rollout_values + (values - rollout_values).clamp(-clip, clip)
    held_squares = (held - returns) ** 2
    return 0.5 * torch.maximum(squares, held_squares), held_squares > squares
