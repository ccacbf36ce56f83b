"""Let a reward check its own arguments before a run, beyond what their types express."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TypeVar

_ATTRIBUTE = "refuses_arguments"
_Reward = TypeVar("_Reward", bound=Callable[..., object])


def refused_by(check: Callable[..., object]) -> Callable[[_Reward], _Reward]:
    """Mark a reward function: `rlhf check` passes its arguments to `check` before a run.

    `check` is called with the reward's arguments that it also has, defaults included, and raises RewardError or
    ValueError for values that the reward cannot work with:

        @refused_by(score_length_ramp)      # would raise for full == zero
        def length_ramp(completions, *, full: float, zero: float): ...
    """

    def mark(reward: _Reward) -> _Reward:
        setattr(reward, _ATTRIBUTE, check)
        return reward

    return mark


def try_arguments(reward: Callable[..., object], args: Mapping[str, object]) -> None:
    """Call the check of `reward`, if it has one, and let its errors through."""
    check = getattr(reward, _ATTRIBUTE, None)
    if check is None:
        return
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(reward).parameters.items()
        if parameter.default is not parameter.empty
    }
    asked = inspect.signature(check).parameters
    check(**{name: value for name, value in {**defaults, **args}.items() if name in asked})
