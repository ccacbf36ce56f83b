"""Lets a reward refuse its own arguments before a run, where their types cannot say what it could not work with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TypeVar

_ATTRIBUTE = "refuses_arguments"
_Reward = TypeVar("_Reward", bound=Callable[..., object])


def refused_by(check: Callable[..., object]) -> Callable[[_Reward], _Reward]:
    """Mark a reward function: `rlhf check` tries its arguments on `check` before a run.

    `check` is called with those arguments of the reward that it has a name for, defaults included, and raises
    RewardError or ValueError for what the reward could not work with:

        @refused_by(score_length_ramp)      # would raise for full == zero
        def length_ramp(completions, *, full: float, zero: float): ...
    """

    def mark(reward: _Reward) -> _Reward:
        setattr(reward, _ATTRIBUTE, check)
        return reward

    return mark


def try_arguments(reward: Callable[..., object], args: Mapping[str, object]) -> None:
    """Call what refuses the arguments of `reward`, where it has such a thing. Raises what that raises."""
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
