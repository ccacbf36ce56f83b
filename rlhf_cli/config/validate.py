"""Validate a composed configuration and report every problem at once, each under its full key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from pydantic import ValidationError

from rlhf_cli.config.compose import Composed
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.rules import launch_rules, metric_rules, reward_rules, trainer_rules
from rlhf_cli.config.schema.experiment import Experiment, field_at
from rlhf_cli.config.trl_args import RESERVED_ARGS
from rlhf_cli.errors import UserError, raise_any
from rlhf_cli.rewards.stack.returned_scores import LARGEST
from rlhf_cli.tables.trl_trainers import TRAINERS
from rlhf_cli.text.json_values import leaves, section
from rlhf_cli.text.redaction import is_secret_key, remember, secret_in

_RULES: tuple[Callable[[Experiment, Origins], Iterable[UserError]], ...] = (
    *(trainer_rules.section_problems, reward_rules.reward_problems, trainer_rules.ppo_problems),
    *(trainer_rules.advantage_problems, reward_rules.truncation_problems, reward_rules.sampling_problems),
    *(reward_rules.tool_problems, trainer_rules.template_problems, trainer_rules.name_problems),
    *(trainer_rules.adapter_problems, trainer_rules.quantize_problems, metric_rules.evaluation_problems),
    *(metric_rules.stop_problems, metric_rules.expect_problems, metric_rules.sweep_problems),
    *(trainer_rules.callback_problems, trainer_rules.trainer_class_problems, launch_rules.slurm_problems),
    *(launch_rules.strategy_problems, launch_rules.rollout_problems),
)
"""The rules about several keys; each returns at once if it does not concern the experiment."""


def validate(composed: Composed) -> Experiment:
    """Return the experiment of a composed configuration. Raise Problems, or the only UserError, with keys and lines."""
    tree, origins = composed.tree, composed.origins
    launch, trainer = section(tree, "launch"), section(tree, "trainer")
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
    wrong = list(trainer_rules.wrong_arguments(trainer, section(trainer, "args")))
    problems += _wrong_leaves(composed)
    if refused is not None or wrong:
        from rlhf_cli.config.schema_errors import argument_problems, schema_problems  # needed only for a mistake

        of_schema = schema_problems(refused, tree, origins) if refused else ()
        for found in (of_schema, argument_problems(wrong, tree, origins)):
            places = {problem.where for problem in problems}  # a place is reported once
            problems += [problem for problem in found if problem.where not in places]
    if experiment is not None and experiment.trainer.trl in TRAINERS:
        for rule in _RULES:
            problems += rule(experiment, origins)
    raise_any(problems)
    assert experiment is not None
    return experiment


def _wrong_leaves(composed: Composed) -> Iterator[UserError]:
    """Yield a problem for every missing value, infinite number, secret, and key that would run foreign code."""
    from_environment = {".".join(map(str, path)) for path in composed.references}
    origins = composed.origins
    if origins.not_as_written:
        from rlhf_cli.config.suggestions import accepts  # needed only for a mistake
    for key, text in origins.not_as_written.items():
        what = f"YAML reads another number in {key} than the one you wrote"
        got = f"{text}, which YAML reads in base {60 if ':' in text else 8}"
        field, is_list = field_at(key.split(".")), origins.shapes[key].__name__ == "SequenceNode"
        is_text = field is not None and accepts(field, text)
        typed = f"'{key}=\"{text}\"'" if is_text else f"{key}={int(''.join(filter(str.isdigit, text)))}"
        expected = "a number without a colon or a leading zero, or a text in quotes"
        yield origins.error(key, what, got, None if is_list else typed, expected=expected)
    for key, value in leaves(composed.tree):
        name = key.rpartition(".")[2]
        if is_secret_key(name):
            remember(value)  # so that no message prints the value
        if value == "???":
            reward = next(iter(section(composed.tree, "rewards")), None) if key == "sweep.objective" else None
            hint = f"{key}=rewards/{reward}/mean" if reward else f"{key}=VALUE"
            yield origins.error(key, f"{key} must be given", hint=hint)
        elif isinstance(value, int | float) and not abs(value) <= LARGEST:  # comparisons with NaN are false
            yield origins.error(key, f"{key} is not a finite number", repr(value))
        elif key.removeprefix("trainer.args.") in RESERVED_ARGS or key == f"rewards.{name}":
            continue  # wrong_arguments reports the first; the second is a name that the user gives a reward
        elif name == "_target_":
            what, expected = "`_target_` could call any Python function", "`fn: module:function` under a reward"
            yield origins.error(key, what, value, expected=expected)
        elif name == "trust_remote_code" and value is True:
            # It may be typed on the command line, now or when the run was frozen.
            origin = origins.of(key)
            if origin is None or origin.file not in (None, composed.frozen):
                advice = f"type {key}=true on the command line if you trust the repository"
                yield origins.error(key, "a file cannot set trust_remote_code, which runs foreign code", advice=advice)
        elif value is None or isinstance(value, dict) or key in from_environment:
            continue  # the run folder will hold a reference to the environment, not the value
        elif is_secret_key(name):
            expected = "an environment variable (HF_TOKEN, WANDB_API_KEY)"
            advice = f"'~{key}', or in single quotes '{key}=${{oc.env:NAME}}', which each process resolves"
            what = f"{key} would put a secret into the run folder"
            yield origins.error(key, what, expected=expected, advice=advice)
        elif isinstance(value, str) and (secret := secret_in(value)) is not None:
            kind, variable = secret
            remember(value)
            reference = f"'{key}=${{oc.env:{variable or 'NAME'}}}'"
            what, known = f"{key} holds {kind}; anyone could read it in the run folder", reference if variable else None
            advice = "" if variable else f"export NAME=...; then, in single quotes, {reference}"
            expected = "a reference to an environment variable"
            yield origins.error(key, what, hint=known, expected=expected, advice=advice or None)
