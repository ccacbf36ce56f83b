"""Checks the section `trainer`: that there is such a trainer, and each argument by TRL's own fields.

These rules need no valid experiment: they are reported together with what the schema refuses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rlhf_cli.config import trl_args
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.owned import home_of
from rlhf_cli.config.rules.ppo_rules import ppo_argument_problem
from rlhf_cli.config.schema.ppo_sections import PpoArgs
from rlhf_cli.errors import ConfigError, UserError
from rlhf_cli.suggest import nearest
from rlhf_cli.tables.trl_trainers import TRAINERS


def trainer_problems(tree: Mapping[str, object], origins: Origins) -> Iterator[UserError]:
    """Yield every problem with the section `trainer` of a composed tree."""
    section = tree.get("trainer")
    if not isinstance(section, dict) or not isinstance(section.get("trl"), str):
        return
    if section["trl"] not in TRAINERS:
        yield _no_row(section["trl"], origins)
        return
    trainer = trl_args.trainer(section["trl"])
    args = section.get("args") or {}
    has_critic = section.get("baseline", "group") != "group"  # the schema reports a misspelt value
    for name, value in args.items() if isinstance(args, dict) else ():
        problem = _argument_problem(trainer, has_critic, str(name), value, origins)
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
    trainer: trl_args.TrainerFields, has_critic: bool, name: str, value: object, origins: Origins
) -> UserError | None:
    key = f"trainer.args.{name}"
    home = home_of(name, has_critic=has_critic)
    if home is not None:
        return ConfigError(f"{key} is set elsewhere", where=origins.where(key), hint=home)
    if has_critic and name in PpoArgs.model_fields:
        return ppo_argument_problem(name, value, origins)
    if name not in trainer.fields:
        valid = [*trainer.fields, *(PpoArgs.model_fields if has_critic else ())]
        close = nearest(name, valid)
        hint = f"trainer.args.{close}" if close and home_of(close, has_critic=has_critic) is None else None
        owners = ["trainer=ppo"] if name in PpoArgs.model_fields else trl_args.owner_of(name)
        return ConfigError(
            f"unknown option {name!r} for {trainer.config_class}",
            where=origins.where(key),
            expected=f"a field of {trainer.config_class}"
            + (f" or one of {', '.join(PpoArgs.model_fields)}" if has_critic else "")
            + (f"; {name} belongs to {', '.join(owners)}" if owners else ""),
            hint="trainer=ppo" if name in PpoArgs.model_fields else hint,
        )
    complaint = trl_args.complaint(trainer.fields[name], value)
    if complaint is None:
        return None
    expected, close = complaint
    return ConfigError(
        f"wrong value for {key}",
        where=origins.where(key),
        got=repr(value),
        expected=expected,
        hint=f"{key}={close}" if close else None,
    )
