"""Let a reward check its own arguments before a run, beyond what their types express."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

CHECK = "refuses_arguments"
_Reward = TypeVar("_Reward", bound=Callable[..., object])


def refused_by(check: Callable[..., object]) -> Callable[[_Reward], _Reward]:
    """Mark a reward function: `rlhf check` passes its arguments to `check` before a run.

    `check` is called with the reward's arguments that it also has, defaults included, and raises RewardError or
    ValueError for values that the reward cannot work with.
    """

    def mark(reward: _Reward) -> _Reward:
        setattr(reward, CHECK, check)
        return reward

    return mark
