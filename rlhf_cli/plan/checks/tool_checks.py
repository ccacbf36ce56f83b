"""Check what the model may call: functions, environments, rollout functions, and how the chat template shows calls."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path

from rlhf_cli.config.schema.rollout_sections import ENVIRONMENT_COLUMN
from rlhf_cli.errors import DataError, RewardError, UserError, in_a_line
from rlhf_cli.plan.checks.facts import Check, DataFacts, Findings, Subject
from rlhf_cli.plan.checks.prompt_checks import has_conversations
from rlhf_cli.plan.interaction_building import environment_key, environment_of
from rlhf_cli.plan.run_plan import Notice
from rlhf_cli.rewards.stack.reward_functions import import_function, source_file
from rlhf_cli.text.suggest import nearest
from rlhf_cli.tools_and_environments import NO_TOOLS, Function, tools_of


def interaction_problems(subject: Subject) -> Check[dict[str, Path]]:
    """Import all tools, environments and the rollout function; return their files by key."""
    experiment, where = subject.experiment, subject.where
    named = {f"tools.{name}": tool.fn for name, tool in experiment.tools.items()}
    named |= {environment_key(name): section.own_class for name, section in experiment.environments.items()}
    named |= {"rollout": experiment.rollout.fn} if experiment.rollout is not None else {}
    files, classes = dict[str, Path](), list[type]()
    for key, fn in named.items():
        place = where(f"{key}.class" if key.startswith("environment") else f"{key}.fn")
        try:
            if key.startswith("environment"):
                classes.append(environment_of(fn, place))
                yield from _undescribed(tools_of(classes[-1]), fn, place)
            elif key == "rollout":
                _check_rollout(import_function(fn, where=place), fn, place)
            else:
                yield from _undescribed({key.removeprefix("tools."): import_function(fn, where=place)}, fn, place)
        except UserError as error:
            yield error
            continue
        if (file := source_file(fn)) is not None:
            files[key] = file
    if len(classes) == len(experiment.environments):
        yield from _scores(subject, classes)
    return files


def _undescribed(tools: Mapping[str, Function], fn: str, place: str) -> Iterator[UserError]:
    """Yield an error for each function that the chat template cannot describe to the model."""
    from transformers.utils.chat_template_utils import get_json_schema

    for name, tool in tools.items():
        try:
            if not inspect.isfunction(tool):
                raise TypeError(f"it is no function, but a {type(tool).__name__}")
            get_json_schema(tool)
        except Exception as error:
            yield RewardError(
                f"the model cannot be told what the tool {name!r} does",
                where=place,
                got=f"{fn}: {in_a_line(error)}",
                expected="a type for every argument, and a docstring with a line for each: Args:, then `a: A number.`",
            )


def _check_rollout(function: Function, fn: str, place: str) -> None:
    try:
        inspect.signature(function).bind([], object())
    except TypeError:
        what, got = "the rollout function takes other arguments", f"{fn}{inspect.signature(function)}"
        expected = "def rollout(prompts, trainer): it returns prompt_ids, completion_ids and logprobs"
        raise RewardError(what, where=place, got=got, expected=expected) from None


def _scores(subject: Subject, classes: list[type]) -> Iterator[UserError | Notice]:
    """Yield an error for each reward that names no method, and a notice for a score that no reward reads."""
    methods = {name for each in classes for name, _ in inspect.getmembers(each, inspect.isfunction)}
    for name, reward in subject.experiment.rewards.items():
        asked = reward.environment
        if asked is not None and classes and asked not in methods - {"reset"}:
            public = sorted(other for other in methods if not other.startswith("_") and other != "reset")
            close = nearest(asked, public)
            yield RewardError(
                f"the environment has no method {asked!r}",
                where=subject.where(f"rewards.{name}.environment"),
                got=", ".join(each.__name__ for each in classes),
                expected=f"one of {', '.join(public)}" if public else "a method that returns a number",
                hint=f"rewards.{name}.environment={close}" if close else None,
            )
    read = {reward.environment for reward in subject.experiment.rewards.values()}
    if NO_TOOLS[1] in methods - read:
        yield Notice("environment", "its get_reward is not used: rewards.NAME.environment=get_reward uses it")


def conversation_problems(subject: Subject, data: DataFacts) -> Findings:
    """Yield an error for plain-text prompts, in which nothing can be called, and for unknown names of environments."""
    experiment = subject.experiment
    used = [name for name in ("tools", "environment") if getattr(experiment, name)]
    if used and data.columns and not has_conversations(experiment, data):
        yield DataError(
            f"the prompts are plain texts, and a model calls the {used[0]} in a conversation",
            where=subject.where("data"),
            got=data.described,
            expected="a prompt of messages: [{role: user, content: ...}]",
            hint="data.prompt='[{role: user, content: \"{prompt}\"}]', or '~" + used[0] + "'",
        )
    if not isinstance(experiment.environment, dict):
        return
    for read in data.sources:
        if read.rows is None or ENVIRONMENT_COLUMN not in read.columns:
            continue
        names = {str(read.rows[row][ENVIRONMENT_COLUMN]) for row in range(len(read.rows))}
        if unknown := sorted(names - set(experiment.environment)):
            close = nearest(unknown[0], experiment.environment)
            yield DataError(
                f"rows name an environment that does not exist: {unknown[0]}",
                where=f"{read.source.name}, column {ENVIRONMENT_COLUMN}",
                got=", ".join(unknown[:5]),
                expected=", ".join(experiment.environment),
                advice=f"write {close}" if close else None,
            )
