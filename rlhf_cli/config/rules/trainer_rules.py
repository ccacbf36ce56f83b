"""Check the section `trainer`, a trainer class of the user's, and quantised weights.

These rules need no valid experiment: they are reported together with the schema's errors.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from rlhf_cli.config import trl_args
from rlhf_cli.config.nearest import first_taken, former_name, meant_key
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.rules.ppo_rules import ppo_argument_problem
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.trainer_sections import PpoArgs
from rlhf_cli.config.trl_args import home_of
from rlhf_cli.errors import ConfigError, UserError
from rlhf_cli.tables.trl_trainers import TRAINERS
from rlhf_cli.text.json_values import JsonTree, section
from rlhf_cli.text.suggest import nearest


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


_KEY = "trainer.class"
_FORM = "./file.py:Class, or package.module:Class"


def trainer_class_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield what is wrong with the class: it does not exist, or it inherits from another TRL trainer.

    If the source does not show all bases, the class is checked after its import.
    """
    named, trl = experiment.trainer.own_class, experiment.trainer.trl
    if named is None:
        return
    where = origins.where(_KEY)
    module, colon, name = named.rpartition(":")
    if not colon or not name.isidentifier():
        yield ConfigError("this is no class name", where=where, got=named, expected=_FORM)
        return
    file = class_file(named)
    if file is None or not file.is_file():
        yield ConfigError("there is no such file or module", where=where, got=module, expected=_FORM)
        return
    try:
        body = ast.parse(file.read_text(encoding="utf-8")).body
    except (SyntaxError, UnicodeDecodeError) as error:
        yield ConfigError(f"{file.name} cannot be read as Python", where=where, got=str(error))
        return
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    if name not in classes and name not in _imported(body):
        close = nearest(name, classes)
        yield ConfigError(
            f"{file.name} has no class {name!r}",
            where=where,
            got=named,
            expected="one of " + ", ".join(classes) if classes else "a class defined in that file",
            hint=f"{_KEY}={module}:{close}" if close else None,
        )
        return
    bases = _all_bases(name, classes)
    other = next((base for base in bases if base != trl and base in trl_args.trainers()), None)
    if trl not in bases and other is not None:
        can_run = other in TRAINERS
        yield ConfigError(
            f"{name} inherits from {other}, and trainer.trl is another"
            if can_run
            else f"{name} inherits from {other}, a trainer of TRL's that rlhf cannot run",
            where=where,
            got=f"trainer.trl={trl}",
            expected=f"a subclass of {trl}" if can_run else f"a subclass of one of {', '.join(TRAINERS)}",
            hint=f"trainer.trl={other}" if can_run else "rlhf list trainer",
        )


def class_file(named: str) -> Path | None:
    """Return the file that defines `./file.py:Class` or `package.module:Class`, without importing it."""
    module = named.rpartition(":")[0]
    if module.endswith(".py"):
        return Path(module).expanduser()
    top, *below = module.split(".")
    for folder in (Path.cwd(), _folder_of(top)):
        stem = folder.joinpath(top, *below) if folder is not None else None
        for file in (stem.with_suffix(".py"), stem / "__init__.py") if stem is not None else ():
            if file.is_file():
                return file
    return None


def _folder_of(package: str) -> Path | None:
    """Return the folder that contains an installed package or module."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    origin = Path(spec.origin)
    return origin.parent.parent if origin.name == "__init__.py" else origin.parent


def _imported(body: list[ast.stmt]) -> set[str]:
    return {alias.asname or alias.name for node in body if isinstance(node, ast.ImportFrom) for alias in node.names}


def _all_bases(name: str, classes: dict[str, ast.ClassDef]) -> list[str]:
    """Return the class's own name and those of all bases that the source shows."""
    bases, waiting = [name], [name]
    while waiting:
        node = classes.get(waiting.pop())
        for base in node.bases if node is not None else ():
            called = base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else None
            if called is not None and called not in bases:
                bases.append(called)
                waiting.append(called)
    return bases


def quantize_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield every problem with `model.quantize`."""
    model = experiment.model
    if model.quantize is None:
        return
    where = origins.where("model.quantize")
    if model.lora is None:
        yield ConfigError(
            "quantised weights cannot be trained",
            where=where,
            got=f"model.quantize={model.quantize} without model.lora",
            expected="an adapter that is trained on top of them",
            hint="model.lora.r=16, or model.quantize=null",
        )
    if experiment.launch.precision == "fp16":
        yield ConfigError(
            "an adapter on quantised weights is kept in bfloat16, which fp16 training cannot scale",
            where=origins.where("launch.precision"),
            got="fp16",
            expected="bf16, or float32",
            hint="launch.precision=bf16",
        )
