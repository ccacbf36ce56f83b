"""Judge a composed configuration: every problem at once, each with its place and a way out."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rlhf_cli.config import trl_args
from rlhf_cli.config.compose import Composed
from rlhf_cli.config.evaluation import evaluation_problems
from rlhf_cli.config.origins import COMMAND_LINE, Origins
from rlhf_cli.config.owned import OWNED, home_of
from rlhf_cli.config.ppo import ppo_argument_problem, ppo_problems
from rlhf_cli.config.primary import expand_primary
from rlhf_cli.config.quantize import quantize_problems
from rlhf_cli.config.reward_model import reward_model_problems
from rlhf_cli.config.rewards import reward_problems
from rlhf_cli.config.schema import Experiment, PpoArgs
from rlhf_cli.config.truncation import truncation_problems
from rlhf_cli.errors import ConfigError, Problems, UserError
from rlhf_cli.suggest import nearest

_SECRET = re.compile(r"(^|_)(token|api_key|password|secret|access_key)$", re.IGNORECASE)
_RULES = (
    *(reward_problems, ppo_problems, truncation_problems, reward_model_problems, quantize_problems),
    evaluation_problems,
)
_TOKENS_OF_TEXT = {"eos_token", "pad_token", "bos_token", "unk_token"}


def judge(composed: Composed) -> Experiment:
    """The experiment a composed configuration describes.

    Raises Problems, or the one UserError there is, naming each key with its file and line.
    """
    tree, origins = composed.tree, composed.origins
    problems: list[UserError] = [*_missing(tree, origins), *_forbidden(tree, origins)]
    experiment: Experiment | None = None
    try:
        experiment = Experiment.model_validate(tree)
    except ValidationError as error:
        told = {problem.where for problem in problems}
        problems += [found for found in _schema_problems(error, tree, origins) if found.where not in told]
    told = {problem.where for problem in problems}
    problems += [found for found in _trainer_problems(tree, origins) if found.where not in told]
    if experiment is not None and experiment.trainer.trl in trl_args.trainers():
        for rules in _RULES:
            problems += rules(experiment, origins)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise Problems(problems)
    assert experiment is not None
    return expand_primary(experiment)


def _leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every mapping entry, branches included."""
    entries = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, value in entries:
        key = f"{prefix}.{name}" if prefix else str(name)
        yield key, value
        yield from _leaves(value, key)


def _missing(tree: dict[str, Any], origins: Origins) -> Iterator[UserError]:
    for key, value in _leaves(tree):
        if value == "???":
            yield ConfigError(f"{key} must be given", where=origins.where(key), hint=f"{key}=VALUE")


def _forbidden(tree: dict[str, Any], origins: Origins) -> Iterator[UserError]:
    for key, value in _leaves(tree):
        name = key.rpartition(".")[2]
        if key.removeprefix("trainer.args.") in OWNED or key == f"rewards.{name}":
            continue  # told below, with the place it belongs to; what a user calls a reward is no key of ours
        if name == "_target_":
            yield ConfigError(
                "`_target_` would call any Python function a configuration names",
                where=origins.where(key),
                got=value,
                expected="`fn: module:function` under a reward, which only ever scores completions",
            )
        elif name == "trust_remote_code" and value is True and str(origins.of(key)) != COMMAND_LINE:
            yield ConfigError(
                "trust_remote_code runs code from a model repository and is not accepted from a file",
                where=origins.where(key),
                hint=f"{key}=true on the command line, if you do trust it",
            )
        elif value is not None and _SECRET.search(name) and name not in _TOKENS_OF_TEXT:
            yield ConfigError(
                f"{key} would put a secret into the run folder",
                where=origins.where(key),
                expected="secrets in the environment (HF_TOKEN, WANDB_API_KEY), never in a configuration",
                hint=f"~{key}",
            )


def _schema_problems(error: ValidationError, tree: dict[str, Any], origins: Origins) -> Iterator[UserError]:
    by_key: dict[str, tuple[list[int | str], ErrorDetails]] = {}
    for found in error.errors(include_url=False):
        # A union reports every alternative; one message a key is enough.
        path = _keys_of(found, tree)
        by_key.setdefault(".".join(str(part) for part in path), (path, found))
    for key, (path, found) in by_key.items():
        if any(other.startswith(key + ".") for other in by_key):
            continue  # the same trouble is told more precisely further down
        if found["type"] == "extra_forbidden":
            valid = sorted(_fields_at(path[:-1]))
            close = nearest(str(path[-1]), valid)
            parent = ".".join(str(part) for part in path[:-1])
            yield ConfigError(
                f"unknown key {key!r}",
                where=origins.where(key),
                expected=f"one of {', '.join(valid)}",
                hint=f"{parent + '.' if parent else ''}{close}" if close else None,
            )
        elif found["type"] == "missing":
            yield ConfigError(f"{key} must be given", where=origins.where(key), hint=f"{key}=VALUE")
        else:
            shown = found["input"] if not isinstance(found["input"], dict) else ", ".join(found["input"]) or "{}"
            yield ConfigError(
                f"wrong value for {key or 'the experiment'}",
                where=origins.where(key),
                got=f"{shown!r}" if not isinstance(found["input"], dict) else shown,
                expected=_expected(found["msg"]),
            )


def _keys_of(found: ErrorDetails, tree: dict[str, Any]) -> list[int | str]:
    """The keys in pydantic's location, without the names it inserts for a union's alternatives."""
    keys: list[int | str] = []
    node: Any = tree
    for part in found["loc"]:
        inside = part in node if isinstance(node, dict) else isinstance(node, list) and part in range(len(node))
        if inside:
            keys.append(part)
            node = node[part]
    is_absent_key = found["type"] == "missing" and isinstance(found["loc"][-1], str)
    return [*keys, found["loc"][-1]] if is_absent_key else keys


def _expected(message: str) -> str:
    text = message.removeprefix("Value error, ").removeprefix("Input should be ")
    return text.removeprefix("a ").removeprefix("valid ") if text.startswith("a valid") else text


def _fields_at(path: list[int | str]) -> list[str]:
    """The valid keys of the section a path leads to."""
    kind: Any = Experiment
    for part in path:
        if isinstance(kind, type) and issubclass(kind, BaseModel) and part in kind.model_fields:
            kind = _section(kind.model_fields[str(part)].annotation)
        elif typing.get_origin(kind) is dict:
            kind = _section(typing.get_args(kind)[1])
        elif typing.get_origin(kind) is list:
            kind = _section(typing.get_args(kind)[0])
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []


def _section(annotation: Any) -> Any:
    """The section, dict or list inside an optional or union annotation."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        arms = [arm for arm in typing.get_args(annotation) if arm is not type(None)]
        return next(
            (arm for arm in arms if typing.get_origin(arm) in (dict, list) or hasattr(arm, "model_fields")), arms[0]
        )
    return annotation


def _trainer_problems(tree: dict[str, Any], origins: Origins) -> Iterator[UserError]:
    section = tree.get("trainer")
    if not isinstance(section, dict) or not isinstance(section.get("trl"), str):
        return
    shipped = trl_args.trainers()
    if section["trl"] not in shipped:
        close = nearest(section["trl"], shipped)
        yield ConfigError(
            f"TRL ships no trainer {section['trl']!r}",
            where=origins.where("trainer.trl"),
            expected="one of " + ", ".join(shipped),
            hint=f"trainer.trl={close}" if close else None,
        )
        return
    trainer = trl_args.trainer(section["trl"])
    args = section.get("args") or {}
    has_critic = section.get("baseline", "group") != "group"  # a misspelt one is told by the schema
    for name, value in args.items() if isinstance(args, dict) else ():
        problem = _argument_problem(trainer, has_critic, str(name), value, origins)
        if problem is not None:
            yield problem


def _argument_problem(
    trainer: trl_args.TrlTrainer, has_critic: bool, name: str, value: Any, origins: Origins
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
