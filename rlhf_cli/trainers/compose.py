"""The subclass of a TRL trainer that runs experiments."""

from __future__ import annotations

import inspect

from rlhf_cli.trainers.reward_stack import WithRewardStack
from rlhf_cli.trainers.seams import InRunFolder


def with_our_seams(trl_trainer: type) -> type:
    """The subclass of a TRL trainer that runs experiments: with the reward stack when it takes reward functions.

    It keeps TRL's class name, which TRL writes into profiling metrics and model cards.
    """
    takes_rewards = "reward_funcs" in inspect.signature(trl_trainer).parameters
    ours = WithRewardStack if takes_rewards else InRunFolder
    return type(trl_trainer.__name__, (ours, trl_trainer), {"__module__": __name__, "__doc__": trl_trainer.__doc__})
