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
    ValueError for values that the reward cannot work with.
    """

    def mark(reward: _Reward) -> _Reward:
        setattr(reward, _ATTRIBUTE, check)
        return reward

    return mark


def try_arguments(reward: Callable[..., object], args: Mapping[str, object]) -> None:
    """Call the check of `reward`, if it has one, and let its errors through."""
    if (check := getattr(reward, _ATTRIBUTE, None)) is None:
        return
    parameters = inspect.signature(reward).parameters.values()
    given = {one.name: one.default for one in parameters if one.default is not one.empty} | dict(args)
    wanted = inspect.signature(check).parameters
    check(**{name: value for name, value in given.items() if name in wanted})
