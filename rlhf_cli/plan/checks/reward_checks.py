"""Checks the reward functions, the reward models, and the function that combines them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from rlhf_cli.config.compose import Composed
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import RewardError, UserError
from rlhf_cli.plan.checks.check_context import CheckContext
from rlhf_cli.plan.checks.prompt_checks import has_conversations
from rlhf_cli.plan.run_plan import Notice
from rlhf_cli.rewards.stack.argument_values import missing_arguments
from rlhf_cli.rewards.stack.reward_functions import import_function, required_columns, resolve, source_file


def reward_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Yield what is wrong with each reward, and note the columns it reads and its source file."""
    is_chat = has_conversations(experiment, context)
    where = composed.origins.where
    for name, reward in experiment.rewards.items():
        key = f"rewards.{name}"
        try:
            if reward.model is not None:
                from rlhf_cli.models.model_folders import describe_reward_model

                describe_reward_model(reward.model, where=where(f"{key}.model"), conversational=is_chat)
                if reward.args:
                    raise RewardError("a reward model takes no args", where=where(f"{key}.args"))
                continue
            assert reward.fn is not None
            function = resolve(reward.fn, reward.args, where=where(f"{key}.fn"), args_key=f"{key}.args", place=where)
            if (file := source_file(reward.fn)) is not None:
                context.files[key] = file
            context.reward_columns[name] = required_columns(function)
            parameters = inspect.signature(function).parameters
            context.read_by_rewards |= {
                None if one.kind is one.VAR_KEYWORD else one.name for one in parameters.values()
            }
            for argument, parameter in parameters.items():
                default, kept = parameter.default, f"{key}.args.{argument}"
                if (
                    argument in context.columns
                    and argument not in reward.args
                    and isinstance(default, int | float | str)
                ):
                    text = f"{key} gets the column {argument!r}, not its default: {kept}={default} keeps that"
                    context.notices.append(Notice("rewards", text))
            context.missing_arguments[name] = missing_arguments(function, only_by_keyword=not context.columns)
        except UserError as error:
            yield error


def aggregate_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> None:
    """Import the user's aggregate and note its file.

    Raise RewardError if that fails or it does not take `rewards` and `weights`.
    """
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
