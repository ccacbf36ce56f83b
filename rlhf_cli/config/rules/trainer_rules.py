"""Check the section `trainer`, a trainer class of the user's, and quantised weights.

`trainer_problems` needs no valid experiment: its problems are reported together with the schema's.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from rlhf_cli.config import trl_args
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.trainer_sections import PpoArgs
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
        yield _cannot_run(name_of_trainer, origins)
        return
    trainer = trl_args.trainer(name_of_trainer)
    has_critic = composed.get("baseline", "group") != "group"  # the schema reports a misspelt value
    for name, value in section(composed, "args").items():
        key = f"trainer.args.{name}"
        where, home = origins.where(key), trl_args.own_key_for(name, has_critic=has_critic)
        if home is not None:
            yield ConfigError(f"{key} is set elsewhere", where=where, hint=home)
        elif has_critic and name in PpoArgs.model_fields:
            yield from _ppo_argument_problems(name, value, where)
        elif name not in trainer.fields:
            yield _unknown_argument(trainer, name, tree, where, has_critic=has_critic)
        elif (expected := trl_args.expected_instead(trainer.fields[name], value)) is not None:
            yield _wrong_argument(trainer.fields[name], value, expected, where)


def _cannot_run(name: str, origins: Origins) -> UserError:
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
        got="it is not in the table of trainers",
        expected=f"one of {', '.join(TRAINERS)}; or trainer.class, a class of yours that inherits from one of them",
        hint="rlhf list trainer",
    )


def _ppo_argument_problems(name: str, value: object, where: str) -> Iterator[UserError]:
    try:
        PpoArgs.model_validate({name: value})
    except ValidationError as error:
        expected = error.errors()[0]["msg"].removeprefix("Input should be ").removeprefix("a valid ")
        yield ConfigError(f"wrong value for trainer.args.{name}", where=where, got=repr(value), expected=expected)


def _wrong_argument(field: trl_args.TrlField, value: object, expected: str, where: str) -> UserError:
    from rlhf_cli.config.suggestions import first_taken  # needed only for a mistake

    key = f"trainer.args.{field.name}"
    meant = first_taken(
        key,
        value,
        lambda one: trl_args.expected_instead(field, one) is None,
        choices=field.choices,
        default=field.default,
    )
    return ConfigError(f"wrong value for {key}", where=where, got=repr(value), expected=expected, hint=meant)


def _unknown_argument(
    trainer: trl_args.TrainerFields, name: str, tree: JsonTree, where: str, *, has_critic: bool
) -> UserError:
    from rlhf_cli.config.suggestions import former_name, meant_key  # needed only for a mistake

    key, config = f"trainer.args.{name}", trainer.config_class
    former = former_name(name, tree)
    if former is not None:
        row, today = former
        return ConfigError(
            f"{config} has no {name!r}",
            where=where,
            got=f"a name of {row.whose}",
            expected=f"{today}, as it is called here",
            hint=today,
        )
    owners = ["trainer=ppo"] if name in PpoArgs.model_fields else trl_args.owner_of(name)
    of_ppo = f" or one of {', '.join(PpoArgs.model_fields)}" if has_critic else ""
    of_others = f"; {name} belongs to {', '.join(owners)}" if owners else ""
    return ConfigError(
        f"unknown option {name!r} for {config}",
        where=where,
        expected=f"a field of {config}{of_ppo}{of_others}",
        hint=owners[0] if owners == ["trainer=ppo"] else None if owners else meant_key(key, tree),
    )


_KEY = "trainer.class"
_FORM = "./file.py:Class, or package.module:Class"


def trainer_class_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield what is wrong with the class: it does not exist, or it inherits from another TRL trainer.

    If the source does not show all bases, the class is checked after its import.
    """
    named = experiment.trainer.own_class
    if named is None:
        return
    where = origins.where(_KEY)
    module, colon, name = named.rpartition(":")
    file = class_file(named)
    if not colon or not name.isidentifier():
        yield ConfigError("this is no class name", where=where, got=named, expected=_FORM)
    elif file is None or not file.is_file():
        yield ConfigError("there is no such file or module", where=where, got=module, expected=_FORM)
    else:
        try:
            body = ast.parse(file.read_text(encoding="utf-8")).body
        except (SyntaxError, UnicodeDecodeError) as error:
            yield ConfigError(f"{file.name} cannot be read as Python", where=where, got=str(error))
            return
        yield from _class_problems(file, body, named, experiment.trainer.trl, where)


def _class_problems(file: Path, body: list[ast.stmt], named: str, trl: str, where: str) -> Iterator[UserError]:
    module, _, name = named.rpartition(":")
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    imports = [alias for node in body if isinstance(node, ast.ImportFrom) for alias in node.names]
    if name not in classes and name not in {alias.asname or alias.name for alias in imports}:
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
    if trl in bases or other is None:
        return
    if other in TRAINERS:
        what, expected = f"{name} inherits from {other}, and trainer.trl is another", f"a subclass of {trl}"
        hint = f"trainer.trl={other}"
    else:
        what = f"{name} inherits from {other}, a trainer of TRL's that rlhf cannot run"
        expected, hint = f"a subclass of one of {', '.join(TRAINERS)}", "rlhf list trainer"
    yield ConfigError(what, where=where, got=f"trainer.trl={trl}", expected=expected, hint=hint)


def class_file(named: str) -> Path | None:
    """Return the file that defines `./file.py:Class` or `package.module:Class`, without importing it."""
    module = named.rpartition(":")[0]
    if module.endswith(".py"):
        return Path(module).expanduser()
    top, *below = module.split(".")
    folders = [Path.cwd()]
    spec = importlib.util.find_spec(top) if top else None
    if spec is not None and spec.origin is not None:
        origin = Path(spec.origin)
        folders.append(origin.parent.parent if origin.name == "__init__.py" else origin.parent)
    stems = [folder.joinpath(top, *below) for folder in folders]
    files = [file for stem in stems for file in (stem.with_suffix(".py"), stem / "__init__.py")]
    return next((file for file in files if file.is_file()), None)


def _all_bases(name: str, classes: dict[str, ast.ClassDef]) -> list[str]:
    """Return the class's own name and those of all bases that the source shows."""
    bases = [name]
    for known in bases:  # which grows
        for base in classes[known].bases if known in classes else ():
            called = base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else None
            if called is not None and called not in bases:
                bases.append(called)
    return bases


def quantize_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield every problem with `model.quantize`."""
    model = experiment.model
    if model.quantize is not None and model.lora is None:
        yield ConfigError(
            "quantised weights cannot be trained",
            where=origins.where("model.quantize"),
            got=f"model.quantize={model.quantize} without model.lora",
            expected="an adapter that is trained on top of them",
            hint="model.lora.r=16, or model.quantize=null",
        )
    if model.quantize is not None and experiment.launch.precision == "fp16":
        yield ConfigError(
            "an adapter on quantised weights is kept in bfloat16, which fp16 training cannot scale",
            where=origins.where("launch.precision"),
            got="fp16",
            expected="bf16, or float32",
            hint="launch.precision=bf16",
        )
