"""Build the tools, environments and rollout function of an experiment."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.rollout_sections import CallLimits
from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.stack.reward_functions import import_function
from rlhf_cli.tools_and_environments import (
    Counts,
    Function,
    Interactions,
    Limits,
    checked_rollout,
    environment_class,
    environment_factory,
    limited,
    tools_of,
)


def interactions_of(experiment: Experiment, *, place: Callable[[str], str] = str) -> Interactions | None:
    """Return what TRL gets for `tools`, `environment` and `rollout`; None if none is set.

    `place` turns a key into its location. Raise RewardError if one cannot be imported.
    """
    if not (experiment.tools or experiment.environment is not None or experiment.rollout is not None):
        return None
    counts, names = Counts(), set(experiment.tools)
    tools = {
        name: limited(import_function(tool.fn, where=place(f"tools.{name}.fn")), name, f"tools.{name}", limits, counts)
        for name, tool in experiment.tools.items()
        for limits in (_limits(tool),)
    }
    scored_by = frozenset(reward.environment for reward in experiment.rewards.values() if reward.environment)
    factories = dict[str | None, Callable[[], object]]()
    for name, section in experiment.environments.items():
        key = environment_key(name)
        original = environment_of(section.own_class, place(f"{key}.class"))
        wrapped = environment_class(original, key, _limits(section), counts, scored_by=scored_by)
        factories[name] = environment_factory(original, section.args, key, wrapped)
        names |= set(tools_of(wrapped))
    generate = None
    if (rollout := experiment.rollout) is not None:
        function = import_function(rollout.fn, where=place("rollout.fn"))
        generate = checked_rollout(function, rollout.columns, "rollout.fn")
    return Interactions(counts, tools, factories, frozenset(names), generate)


def environment_key(name: str | None) -> str:
    """Return the key of an environment's section."""
    return "environment" if name is None else f"environment.{name}"


def environment_of(named: str, where: str) -> type:
    """Return the class that `environment.class` names. Raise RewardError if it is none, or has no `reset`."""
    found: Function = import_function(named, where=where)
    if not inspect.isclass(found) or not inspect.isfunction(getattr(found, "reset", None)):
        what = "an environment is a class with a method `reset`"
        expected = "class Name, with def reset(self, **row): it begins a rollout, and returns a text or None"
        raise RewardError(what, where=where, got=named, expected=expected)
    return found


def _limits(section: CallLimits) -> Limits:
    return Limits(section.seconds, section.max_characters, section.on_error)
