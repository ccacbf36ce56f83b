"""Checks the section `trainer`: whether the trainer exists, and each argument against TRL's own fields.

These rules need no valid experiment: they are reported together with the schema's errors.
"""

from __future__ import annotations

from collections.abc import Iterator

from rlhf_cli.config import trl_args
from rlhf_cli.config.nearest_keys import former_name, meant_key
from rlhf_cli.config.nearest_values import first_taken
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.owned import home_of
from rlhf_cli.config.rules.ppo_rules import ppo_argument_problem
from rlhf_cli.config.schema.ppo_sections import PpoArgs
from rlhf_cli.errors import ConfigError, UserError
from rlhf_cli.json_values import JsonTree, section
from rlhf_cli.suggest import nearest
from rlhf_cli.tables.trl_trainers import TRAINERS


def trainer_problems(tree: JsonTree, origins: Origins) -> Iterator[UserError]:
    """Yield every problem with the section `trainer` of a composed tree."""
    composed = section(tree, "trainer")
    name_of_trainer = composed.get("trl")
    if not isinstance(name_of_trainer, str):
        return
    if name_of_trainer not in TRAINERS:
        yield _no_row(name_of_trainer, origins)
        return
    trainer = trl_args.trainer(name_of_trainer)
    args = composed.get("args")
    has_critic = composed.get("baseline", "group") != "group"  # the schema reports a misspelt value
    for name, value in args.items() if isinstance(args, dict) else ():
        problem = _argument_problem(trainer, has_critic, str(name), value, tree, origins)
        if problem is not None:
            yield problem


def _no_row(name: str, origins: Origins) -> UserError:
    close = nearest(name, TRAINERS)
    if name not in trl_args.trainers():
        return ConfigError(
            f"TRL ships no trainer {name!r}",
            where=origins.where("trainer.trl"),
            expected="one of " + ", ".join(TRAINERS),
            hint=f"trainer.trl={close}" if close else None,
        )
    return ConfigError(
        f"{name} is a trainer of TRL's that rlhf cannot run",
        where=origins.where("trainer.trl"),
        got="no row for it: whether it generates, which columns it learns from, which sections it reads",
        expected=f"one of {', '.join(TRAINERS)}; or trainer.class, a class of yours that inherits from one of them",
        hint="rlhf list trainer",
    )


def _argument_problem(
    trainer: trl_args.TrainerFields,
    has_critic: bool,
    name: str,
    value: object,
    tree: JsonTree,
    origins: Origins,
) -> UserError | None:
    key = f"trainer.args.{name}"
    home = home_of(name, has_critic=has_critic)
    if home is not None:
        return ConfigError(f"{key} is set elsewhere", where=origins.where(key), hint=home)
    if has_critic and name in PpoArgs.model_fields:
        return ppo_argument_problem(name, value, origins)
    if name not in trainer.fields:
        return _no_such_argument(trainer, has_critic, name, tree, origins)
    complaint = trl_args.complaint(trainer.fields[name], value)
    if complaint is None:
        return None
    field = trainer.fields[name]
    return ConfigError(
        f"wrong value for {key}",
        where=origins.where(key),
        got=repr(value),
        expected=complaint[0],
        hint=first_taken(
            key,
            value,
            lambda one: trl_args.complaint(field, one) is None,
            choices=field.choices,
            default=field.default,
        ),
    )


def _no_such_argument(
    trainer: trl_args.TrainerFields, has_critic: bool, name: str, tree: JsonTree, origins: Origins
) -> UserError:
    key, config = f"trainer.args.{name}", trainer.config_class
    former = former_name(name, tree)
    if former is not None:
        row, today = former
        return ConfigError(
            f"{config} has no {name!r}",
            where=origins.where(key),
            got=f"a name of {row.whose}",
            expected=row.why or f"{today}, as it is called here",
            hint=today or f"'~{key}'",
        )
    owners = ["trainer=ppo"] if name in PpoArgs.model_fields else trl_args.owner_of(name)
    return ConfigError(
        f"unknown option {name!r} for {config}",
        where=origins.where(key),
        expected=f"a field of {config}"
        + (f" or one of {', '.join(PpoArgs.model_fields)}" if has_critic else "")
        + (f"; {name} belongs to {', '.join(owners)}" if owners else ""),
        hint=owners[0] if owners == ["trainer=ppo"] else None if owners else meant_key(key, tree),
    )
