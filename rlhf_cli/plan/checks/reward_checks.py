"""Checks the reward functions, the reward models, and the function that combines them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from rlhf_cli.config.compose import Composed
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_sections import AGGREGATES, Reward
from rlhf_cli.errors import RewardError, UserError
from rlhf_cli.models.model_folders import describe_reward_model
from rlhf_cli.plan.checks.check_context import CheckContext
from rlhf_cli.plan.checks.prompt_checks import has_conversations
from rlhf_cli.rewards.stack.argument_values import missing_arguments
from rlhf_cli.rewards.stack.reward_functions import import_function, required_columns, resolve, source_file


def reward_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Yield what is wrong with each reward, and note the columns it reads and its source file."""
    is_chat = has_conversations(experiment, context)
    for name, reward in experiment.rewards.items():
        try:
            if reward.model is not None:
                where = composed.origins.where(f"rewards.{name}.model")
                describe_reward_model(reward.model, where=where, conversational=is_chat)
                if reward.args:
                    where = composed.origins.where(f"rewards.{name}.args")
                    raise RewardError("a reward model takes no args", where=where)
            else:
                _check_function(name, reward, composed, context)
        except UserError as error:
            yield error


def missing_argument_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Yield an error for each argument of a reward function that has neither a value nor a data column."""
    for name, missing in context.missing_arguments.items():
        for argument in missing:
            if argument not in context.columns:
                key = f"rewards.{name}.args"
                yield RewardError(
                    f"{experiment.rewards[name].fn} needs the argument {argument!r}",
                    where=composed.origins.where(f"rewards.{name}.fn"),
                    got=", ".join(f"{given}={value}" for given, value in experiment.rewards[name].args.items())
                    or "no arguments",
                    expected=f"{key}.{argument}, or a column of that name in the data",
                    hint=f"{key}.{argument}=VALUE",
                )


def aggregate_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> None:
    """Import the user's aggregate and note its file.

    Raise RewardError if that fails or it does not take `rewards` and `weights`.
    """
    if experiment.aggregate in AGGREGATES:
        return
    if (code := source_file(experiment.aggregate)) is not None:
        context.files["aggregate"] = code
    function = import_function(experiment.aggregate, where="aggregate")
    signature = inspect.signature(function)
    try:
        signature.bind(rewards={}, weights={})
    except TypeError:
        raise RewardError(
            "the aggregate takes other arguments than it is given",
            where="aggregate",
            got=f"{experiment.aggregate}({', '.join(signature.parameters)})",
            expected="f(rewards, weights): dicts by name, of a list a reward and of a number; one total a row",
        ) from None


def _check_function(name: str, reward: Reward, composed: Composed, context: CheckContext) -> None:
    assert reward.fn is not None
    function = resolve(
        reward.fn,
        reward.args,
        where=composed.origins.where(f"rewards.{name}.fn"),
        args_key=f"rewards.{name}.args",
        place=composed.origins.where,
    )
    if (file := source_file(reward.fn)) is not None:
        context.files[f"rewards.{name}"] = file
    context.reward_columns[name] = required_columns(function)
    context.missing_arguments[name] = missing_arguments(function, only_by_keyword=not context.columns)
