"""Validate a composed configuration and report every problem at once, each under its full key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from pydantic import ValidationError

from rlhf_cli.config.compose import Composed
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.rules.launch_rules import launch_problems, rollout_problems, slurm_problems, strategy_problems
from rlhf_cli.config.rules.metric_rules import evaluation_problems, expect_problems, stop_problems, sweep_problems
from rlhf_cli.config.rules.reward_rules import reward_model_problems, reward_problems, truncation_problems
from rlhf_cli.config.rules.trainer_rules import (
    ppo_problems,
    quantize_problems,
    trainer_class_problems,
    trainer_problems,
)
from rlhf_cli.config.schema.experiment import Experiment, leaves
from rlhf_cli.config.trl_args import RESERVED_ARGS
from rlhf_cli.errors import ConfigError, Prose, UserError, raise_any
from rlhf_cli.rewards.stack.returned_scores import LARGEST
from rlhf_cli.tables.trl_trainers import TRAINERS
from rlhf_cli.text.json_values import JsonTree, section
from rlhf_cli.text.redaction import is_secret_key, remember, secret_shape, secret_variable_in


def validate(composed: Composed) -> Experiment:
    """Return the experiment that a composed configuration describes.

    Raise Problems, or the UserError itself if there is only one, naming each key with its file and line.
    """
    tree, origins = composed.tree, composed.origins
    problems: list[UserError] = []
    # A frozen experiment is already filled, and may be read where the file no longer exists.
    if composed.frozen is None and section(tree, "launch").get("accelerate_config") is not None:
        from rlhf_cli.config.accelerate_file import fill_from_accelerate_file  # few use such a file

        problems += fill_from_accelerate_file(tree, origins)
    problems += [*_missing(tree, origins), *_forbidden(composed)]
    experiment: Experiment | None = None
    try:
        experiment = Experiment.model_validate(tree)
    except ValidationError as error:
        from rlhf_cli.config.schema_errors import schema_problems  # needed only for a mistake

        places = {problem.where for problem in problems}
        problems += [new for new in schema_problems(error, tree, origins) if new.where not in places]
    places = {problem.where for problem in problems}
    problems += [new for new in trainer_problems(tree, origins) if new.where not in places]
    places = {problem.where for problem in problems}
    problems += [new for new in _not_finite(tree, origins) if new.where not in places]
    if experiment is not None and experiment.trainer.trl in TRAINERS:
        for rules in _rules(experiment):
            problems += rules(experiment, origins)
    raise_any(problems)
    assert experiment is not None
    return experiment


def _rules(experiment: Experiment) -> Iterator[Callable[[Experiment, Origins], Iterable[UserError]]]:
    """Yield the rules across keys that concern an experiment, in the order of their messages."""
    yield from (reward_problems, ppo_problems, truncation_problems)
    if experiment.reward_model is not None:
        yield reward_model_problems
    if experiment.model.quantize is not None:
        yield quantize_problems
    yield evaluation_problems
    if experiment.trainer.own_class is not None:
        yield trainer_class_problems
    yield launch_problems
    if experiment.launch.slurm is not None:
        yield slurm_problems
    yield from (strategy_problems, rollout_problems)
    if experiment.stop is not None:
        yield stop_problems
    if experiment.expect is not None:
        yield expect_problems
    if experiment.sweep is not None:
        yield sweep_problems


def _missing(tree: JsonTree, origins: Origins) -> Iterator[UserError]:
    for key in [key for key, value in leaves(tree) if value == "???"]:
        reward = next(iter(section(tree, "rewards")), None) if key == "sweep.objective" else None
        example = f"rewards/{reward}/mean" if reward else "VALUE"
        yield ConfigError(f"{key} must be given", where=origins.where(key), hint=f"{key}={example}")


def _not_finite(tree: JsonTree, origins: Origins) -> Iterator[UserError]:
    """Yield a problem for every number that is NaN, infinite or beyond float32, wherever it is in the tree."""
    for key, value in leaves(tree):
        if isinstance(value, int | float) and not abs(value) <= LARGEST:  # comparisons with NaN are false
            what = f"{key} is not a finite number"
            yield ConfigError(what, where=origins.where(key), got=repr(value), expected="a finite number")


def _forbidden(composed: Composed) -> Iterator[UserError]:
    """Yield a problem for every secret, and for every key that would run foreign code."""
    from_environment = {".".join(str(part) for part in path) for path in composed.references}
    for key, value in leaves(composed.tree):
        name = key.rpartition(".")[2]
        if is_secret_key(name):
            remember(value)  # so that no message prints the value
        if key.removeprefix("trainer.args.") in RESERVED_ARGS or key == f"rewards.{name}":
            continue  # trainer_problems reports where it belongs; the name a user gives a reward is not one of our keys
        where = composed.origins.where
        if name == "_target_":
            yield ConfigError(
                "`_target_` would call any Python function a configuration names",
                where=where(key),
                got=value,
                expected="`fn: module:function` under a reward, which only ever scores completions",
            )
        elif name == "trust_remote_code" and value is True:
            # It may be typed on the command line, now or when the run was frozen.
            origin = composed.origins.of(key)
            if origin is None or origin.file not in (None, composed.frozen):
                yield ConfigError(
                    "trust_remote_code runs code from a model repository and is not accepted from a file",
                    where=where(key),
                    hint=Prose(f"{key}=true on the command line, if you do trust it"),
                )
        elif value is None or isinstance(value, dict) or key in from_environment:
            continue  # the run folder will hold a reference to the environment, not the value
        elif is_secret_key(name):
            yield ConfigError(
                f"{key} would put a secret into the run folder",
                where=where(key),
                expected="secrets in the environment (HF_TOKEN, WANDB_API_KEY), never in a configuration",
                hint=Prose(f"~{key}, or in single quotes '{key}=${{oc.env:NAME}}', which is read where it is used"),
            )
        elif isinstance(value, str) and (kind := secret_shape(value)) is not None:
            remember(value)
            yield ConfigError(
                f"{key} holds {kind}, which anybody could read in the run folder",
                where=where(key),
                expected="the secret in an environment variable, and a reference to it in the configuration",
                hint=Prose(f"export NAME=...; then, in single quotes, '{key}=${{oc.env:NAME}}'"),
            )
        elif isinstance(value, str) and (variable := secret_variable_in(value)) is not None:
            yield ConfigError(
                f"{key} holds the value of the environment variable {variable}, which the run folder would reveal",
                where=where(key),
                expected="a reference, which a shell leaves alone in single quotes",
                hint=f"'{key}=${{oc.env:{variable}}}'",
            )
