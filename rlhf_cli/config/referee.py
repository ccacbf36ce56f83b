"""Validates a composed configuration and reports every problem at once, each with its place and a suggested fix."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError

from rlhf_cli.config.accelerate_file import fill_from_accelerate_file
from rlhf_cli.config.compose import Composed
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.owned import OWNED
from rlhf_cli.config.rules.evaluation_rules import evaluation_problems
from rlhf_cli.config.rules.expect_rules import expect_problems
from rlhf_cli.config.rules.launch_rules import launch_problems
from rlhf_cli.config.rules.number_rules import number_problems
from rlhf_cli.config.rules.ppo_rules import ppo_problems
from rlhf_cli.config.rules.quantize_rules import quantize_problems
from rlhf_cli.config.rules.reward_model_rules import reward_model_problems
from rlhf_cli.config.rules.reward_rules import reward_problems
from rlhf_cli.config.rules.rollout_rules import rollout_problems
from rlhf_cli.config.rules.slurm_rules import slurm_problems
from rlhf_cli.config.rules.stop_rules import stop_problems
from rlhf_cli.config.rules.strategy_rules import strategy_problems
from rlhf_cli.config.rules.sweep_rules import sweep_problems
from rlhf_cli.config.rules.trainer_class_rules import trainer_class_problems
from rlhf_cli.config.rules.trainer_rules import trainer_problems
from rlhf_cli.config.rules.truncation_rules import truncation_problems
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.keys import leaves
from rlhf_cli.config.schema_problems import schema_problems
from rlhf_cli.errors import ConfigError, Problems, Prose, UserError
from rlhf_cli.json_values import JsonTree
from rlhf_cli.redaction import is_secret_key, remember, secret_shape, secret_variable_in
from rlhf_cli.tables.trl_trainers import TRAINERS

_RULES = (
    *(reward_problems, ppo_problems, truncation_problems, reward_model_problems, quantize_problems),
    *(evaluation_problems, trainer_class_problems, launch_problems, slurm_problems),
    *(strategy_problems, rollout_problems, stop_problems, expect_problems, sweep_problems),
)


def judge(composed: Composed) -> Experiment:
    """Return the experiment that a composed configuration describes.

    Raise Problems, or the UserError itself if there is only one, naming each key with its file and line.
    """
    tree, origins = composed.tree, composed.origins
    # A frozen experiment is already filled, and may be read where the file no longer exists.
    problems: list[UserError] = [] if composed.frozen else [*fill_from_accelerate_file(tree, origins)]
    problems += [*_missing(tree, origins), *_forbidden(composed), *number_problems(tree, origins)]
    experiment: Experiment | None = None
    try:
        experiment = Experiment.model_validate(tree)
    except ValidationError as error:
        places = {problem.where for problem in problems}
        problems += [new for new in schema_problems(error, tree, origins) if new.where not in places]
    places = {problem.where for problem in problems}
    problems += [new for new in trainer_problems(tree, origins) if new.where not in places]
    if experiment is not None and experiment.trainer.trl in TRAINERS:
        for rules in _RULES:
            problems += rules(experiment, origins)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise Problems(problems)
    assert experiment is not None
    return experiment


def _missing(tree: JsonTree, origins: Origins) -> Iterator[UserError]:
    for key, value in leaves(tree):
        if value == "???":
            yield ConfigError(f"{key} must be given", where=origins.where(key), hint=f"{key}={_example(key, tree)}")


def _example(key: str, tree: JsonTree) -> str:
    """Return an example to type for a missing value."""
    rewards = tree.get("rewards")
    is_objective = key == "sweep.objective" and isinstance(rewards, dict) and rewards
    return f"rewards/{next(iter(rewards))}/mean" if is_objective and isinstance(rewards, dict) else "VALUE"


def _is_trusted(key: str, composed: Composed) -> bool:
    """Return whether the key was typed on the command line, now or when the run was frozen."""
    origin = composed.origins.of(key)
    return origin is not None and (origin.file is None or origin.file == composed.frozen)


def _forbidden(composed: Composed) -> Iterator[UserError]:
    tree, origins = composed.tree, composed.origins
    from_environment = {".".join(str(part) for part in path) for path in composed.references}
    for key, value in leaves(tree):
        name = key.rpartition(".")[2]
        if is_secret_key(name):
            remember(value)  # so that no message prints the value
        if key.removeprefix("trainer.args.") in OWNED or key == f"rewards.{name}":
            continue  # trainer_problems reports where it belongs; the name a user gives a reward is not one of our keys
        if name == "_target_":
            yield ConfigError(
                "`_target_` would call any Python function a configuration names",
                where=origins.where(key),
                got=value,
                expected="`fn: module:function` under a reward, which only ever scores completions",
            )
        elif name == "trust_remote_code" and value is True and not _is_trusted(key, composed):
            yield ConfigError(
                "trust_remote_code runs code from a model repository and is not accepted from a file",
                where=origins.where(key),
                hint=Prose(f"{key}=true on the command line, if you do trust it"),
            )
        elif key in from_environment:
            continue  # the run folder will hold a reference, not the value
        elif value is not None and not isinstance(value, dict) and is_secret_key(name):
            yield ConfigError(
                f"{key} would put a secret into the run folder",
                where=origins.where(key),
                expected="secrets in the environment (HF_TOKEN, WANDB_API_KEY), never in a configuration",
                hint=Prose(f"~{key}, or in single quotes '{key}=${{oc.env:NAME}}', which is read where it is used"),
            )
        elif isinstance(value, str) and (kind := secret_shape(value)) is not None:
            remember(value)
            yield ConfigError(
                f"{key} holds {kind}, which would lie in the run folder for all to read",
                where=origins.where(key),
                expected="the secret in an environment variable, and a reference to it in the configuration",
                hint=Prose(f"export NAME=...; then, in single quotes, '{key}=${{oc.env:NAME}}'"),
            )
        elif isinstance(value, str) and (variable := secret_variable_in(value)) is not None:
            yield ConfigError(
                f"{key} holds what the environment variable {variable} holds, and the run folder would tell it",
                where=origins.where(key),
                expected="a reference, which a shell leaves alone in single quotes",
                hint=f"'{key}=${{oc.env:{variable}}}'",
            )
