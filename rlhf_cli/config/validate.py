"""Validate a composed configuration and report every problem at once, each under its full key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from pydantic import ValidationError

from rlhf_cli.config.compose import Composed
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.rules.reward_rules import reward_problems, sampling_problems, tool_problems, truncation_problems
from rlhf_cli.config.rules.trainer_rules import (
    adapter_problems,
    advantage_problems,
    name_problems,
    ppo_problems,
    quantize_problems,
    teacher_problems,
    template_problems,
    wrong_arguments,
)
from rlhf_cli.config.schema.experiment import Experiment, field_at
from rlhf_cli.config.trl_args import RESERVED_ARGS
from rlhf_cli.errors import ConfigError, UserError, raise_any
from rlhf_cli.rewards.stack.returned_scores import LARGEST
from rlhf_cli.tables.trl_trainers import TRAINERS
from rlhf_cli.text.json_values import leaves, section
from rlhf_cli.text.redaction import is_secret_key, remember, secret_in

Rule = Callable[[Experiment, Origins], Iterable[UserError]]


def validate(composed: Composed) -> Experiment:
    """Return the experiment that a composed configuration describes.

    First all facts are collected, then messages are made from them. Raise Problems, or the UserError itself if there is
    only one, naming each key with its file and line.
    """
    tree, origins = composed.tree, composed.origins
    launch, trainer = section(tree, "launch"), section(tree, "trainer")
    args = section(trainer, "args")
    problems: list[UserError] = []
    # A frozen experiment is already filled, and may be read where the file no longer exists.
    if composed.frozen is None and launch.get("accelerate_config") is not None:
        from rlhf_cli.config.accelerate_file import fill_from_accelerate_file  # few use such a file

        row = TRAINERS.get(str(trainer.get("trl")))
        problems += fill_from_accelerate_file(launch, origins, generates=row is not None and row.generates)
    experiment = refused = None
    try:
        experiment = Experiment.model_validate(tree)
    except ValidationError as error:
        refused = error
    wrong = list(wrong_arguments(trainer, args))
    problems += _wrong_leaves(composed)
    if refused is not None or wrong:
        from rlhf_cli.config.schema_errors import argument_problems, schema_problems  # needed only for a mistake

        if refused is not None:
            problems += _elsewhere(problems, schema_problems(refused, tree, origins))
        problems += _elsewhere(problems, argument_problems(wrong, tree, origins))
    if experiment is not None and experiment.trainer.trl in TRAINERS:
        rules: tuple[tuple[Rule, bool], ...] = (
            (reward_problems, True),
            (ppo_problems, True),
            (advantage_problems, experiment.advantages is not None),
            (truncation_problems, True),
            (sampling_problems, experiment.sampling.keep_groups is not None),
            (tool_problems, True),
            (template_problems, True),
            (name_problems, True),
            (teacher_problems, True),
            (adapter_problems, experiment.model.lora is not None),
            (quantize_problems, experiment.model.quantize is not None),
            *_rules_of_few(experiment),
        )
        for rule, concerns_it in rules:
            problems += rule(experiment, origins) if concerns_it else ()
    raise_any(problems)
    assert experiment is not None
    return experiment


def _elsewhere(known: list[UserError], new: Iterable[UserError]) -> list[UserError]:
    """Return the new problems at places without a known one."""
    places = {problem.where for problem in known}
    return [problem for problem in new if problem.where not in places]


def _rules_of_few(experiment: Experiment) -> Iterator[tuple[Rule, bool]]:
    """Yield the rules for metrics, classes of the user's and `launch`, with whether they concern the experiment.

    They are imported only if one does: not for a trainer of TRL's that generates on one machine without evaluations.
    """
    launch, trainer, is_plain = experiment.launch, experiment.trainer, experiment.data.overlong_prompts == "error"
    evaluates = {"eval_strategy", "eval_on_start", "metric_for_best_model"} & trainer.args.keys()
    sections = (experiment.data.eval, experiment.stop, experiment.expect, experiment.sweep)
    if evaluates or any(section is not None for section in sections):
        from rlhf_cli.config.rules import metric_rules

        yield metric_rules.evaluation_problems, True
        yield metric_rules.stop_problems, experiment.stop is not None
        yield metric_rules.expect_problems, experiment.expect is not None
        yield metric_rules.sweep_problems, experiment.sweep is not None
    if trainer.callbacks or trainer.own_class is not None:
        from rlhf_cli.config.rules.class_rules import callback_problems, trainer_class_problems

        yield callback_problems, True
        yield trainer_class_problems, trainer.own_class is not None
    is_sharded = launch.strategy != "ddp" or launch.offload
    is_served = launch.rollout != "hf" or launch.rollout_gpus > 0 or bool(launch.vllm.args) or not is_plain
    if not (is_sharded or is_served or launch.slurm is not None):
        return
    from rlhf_cli.config.rules.launch_rules import rollout_problems, slurm_problems, strategy_problems

    yield slurm_problems, launch.slurm is not None
    yield strategy_problems, is_sharded
    yield rollout_problems, is_served


def _wrong_leaves(composed: Composed) -> Iterator[UserError]:
    """Yield a problem for every missing value, infinite number, secret, and key that would run foreign code."""
    from_environment = {".".join(map(str, path)) for path in composed.references}
    lists = {key for key, shape in composed.origins.shapes.items() if shape.__name__ == "SequenceNode"}
    if composed.origins.not_as_written:
        from rlhf_cli.config.suggestions import accepts  # needed only for a mistake
    for key, text in composed.origins.not_as_written.items():
        what, place = f"YAML reads another number in {key} than the one you wrote", composed.origins.where(key)
        got = f"{text}, which YAML reads in base {60 if ':' in text else 8}"
        field = field_at(key.split("."))
        is_text = field is not None and accepts(field, text)
        typed = f"'{key}=\"{text}\"'" if is_text else f"{key}={int(''.join(filter(str.isdigit, text)))}"
        hint = None if key in lists else typed
        expected = "a number without a colon or a leading zero, or a text in quotes"
        yield ConfigError(what, where=place, got=got, expected=expected, hint=hint)
    for key, value in leaves(composed.tree):
        name, where = key.rpartition(".")[2], composed.origins.where
        if is_secret_key(name):
            remember(value)  # so that no message prints the value
        if value == "???":
            reward = next(iter(section(composed.tree, "rewards")), None) if key == "sweep.objective" else None
            example = f"rewards/{reward}/mean" if reward else "VALUE"
            yield ConfigError(f"{key} must be given", where=where(key), hint=f"{key}={example}")
        elif isinstance(value, int | float) and not abs(value) <= LARGEST:  # comparisons with NaN are false
            what = f"{key} is not a finite number"
            yield ConfigError(what, where=where(key), got=repr(value), expected="a finite number")
        elif key.removeprefix("trainer.args.") in RESERVED_ARGS or key == f"rewards.{name}":
            continue  # wrong_arguments reports the first; the second is a name that the user gives a reward
        elif name == "_target_":
            what = "`_target_` could call any Python function"
            yield ConfigError(what, where=where(key), got=value, expected="`fn: module:function` under a reward")
        elif name == "trust_remote_code" and value is True:
            # It may be typed on the command line, now or when the run was frozen.
            origin = composed.origins.of(key)
            if origin is None or origin.file not in (None, composed.frozen):
                what = "trust_remote_code runs code from a model repository, so a file cannot set it"
                advice = f"type {key}=true on the command line if you trust the repository"
                yield ConfigError(what, where=where(key), advice=advice)
        elif value is None or isinstance(value, dict) or key in from_environment:
            continue  # the run folder will hold a reference to the environment, not the value
        elif is_secret_key(name):
            what = f"{key} would put a secret into the run folder"
            expected = "an environment variable (HF_TOKEN, WANDB_API_KEY)"
            advice = f"'~{key}', or in single quotes '{key}=${{oc.env:NAME}}', which each process resolves"
            yield ConfigError(what, where=where(key), expected=expected, advice=advice)
        elif isinstance(value, str) and (secret := secret_in(value)) is not None:
            kind, variable = secret
            remember(value)
            reference = f"'{key}=${{oc.env:{variable or 'NAME'}}}'"
            what, hint = f"{key} holds {kind}; anyone could read it in the run folder", reference if variable else None
            expected = "a reference to an environment variable, in single quotes for the shell"
            words = None if variable else f"export NAME=...; then, in single quotes, {reference}"
            yield ConfigError(what, where=where(key), expected=expected, hint=hint, advice=words)
