"""Check the classes that `trainer.class` and `trainer.callbacks` name, by reading the file that defines them.

What the file takes from other files is checked after its import.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError, UserError
from rlhf_cli.tables.trl_trainers import TRAINERS, UNSUPPORTED
from rlhf_cli.text.regular_files import parse_python
from rlhf_cli.text.suggest import nearest
from rlhf_cli.user_files import class_file

_CLASS, _CALLBACKS = "trainer.class", "trainer.callbacks"
_FORM = "./file.py:Class, or package.module:Class"
_GIVEN = {"self", "model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class", "peft_config"}
"""The arguments of a constructor that rlhf gives, or leaves out if the experiment does not set them."""


@dataclass(frozen=True)
class _Source:
    """The classes that a file defines, and the other names in it -> their names where they are imported from."""

    classes: dict[str, ast.ClassDef]
    others: dict[str, str]


def trainer_class_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield an error if the class does not exist, or if it inherits from another TRL trainer."""
    named, trl = experiment.trainer.own_class, experiment.trainer.trl
    if named is None:
        return
    source, name = _source(named, _CLASS, origins.where(_CLASS)), named.rpartition(":")[2]
    if isinstance(source, ConfigError):
        yield source
        return
    base = _trl_base(name, source)
    what = f"{name} inherits from {base}" if name != base else f"this is TRL's {base}"
    if base in UNSUPPORTED:
        refused = UNSUPPORTED[base]
        what = f"rlhf does not run {base}: {refused.why}"
        yield origins.error(_CLASS, what, name, f"'~{_CLASS}'", advice=refused.instead)
    elif base is not None and base != trl:
        what, hint = f"{what}, but trainer.trl is {trl}", f"trainer.trl={base}"
        yield origins.error(_CLASS, what, f"trainer.trl={trl}", hint, expected=f"a subclass of {trl}")
    given = _GIVEN | ({"teacher_model"} if experiment.teacher is not None else set())
    yield from _constructor_problems(name, source, given, origins.where(_CLASS))


def callback_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield an error for each callback that does not exist, has no base, or whose constructor needs an argument."""
    for number, named in enumerate(experiment.trainer.callbacks):
        where, name = origins.where(f"{_CALLBACKS}.{number}"), named.rpartition(":")[2]
        source = _source(named, _CALLBACKS, where)
        if isinstance(source, ConfigError):
            yield source
        elif name in source.classes and not source.classes[name].bases:
            expected = f"class {name}(transformers.TrainerCallback)"
            yield ConfigError("this is no callback", where=where, got=f"class {name}", expected=expected)
        else:
            yield from _constructor_problems(name, source, {"self"}, where)


def _source(named: str, key: str, where: str) -> _Source | ConfigError:
    """Return the file of the class that `key` names, or an error that says what is missing."""
    module, colon, name = named.rpartition(":")
    file = class_file(named)
    if not colon or not name.isidentifier():
        return ConfigError("this is not the name of a class", where=where, got=named, expected=_FORM)
    if file is None or not file.is_file():
        return ConfigError("the file or module does not exist", where=where, got=module, expected=_FORM)
    try:
        nodes = [*ast.walk(parse_python(file.read_bytes()))]  # also below `if` and `try`
    except SyntaxError as error:
        return ConfigError(f"{file.name} cannot be read as Python", where=where, got=str(error))
    others = {
        alias.asname or alias.name: alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    others |= {ast.unparse(target): "" for node in nodes if isinstance(node, ast.Assign) for target in node.targets}
    source = _Source({node.name: node for node in nodes if isinstance(node, ast.ClassDef)}, others)
    if name in {*source.classes, *others}:
        return source
    close, value = nearest(name, source.classes), "{}" if key == _CLASS else "'[{}]'"
    expected = "one of " + ", ".join(source.classes) if source.classes else "a class defined in that file"
    hint = f"{key}={value.format(f'{module}:{close}')}" if close else None
    return ConfigError(f"{file.name} has no class {name!r}", where=where, got=named, expected=expected, hint=hint)


def _trl_base(name: str, source: _Source) -> str | None:
    """Return the first of TRL's trainers among a class and its bases, as far as the file shows them."""
    waiting = [name]
    for known in waiting:  # which grows
        called = source.others.get(known) or known
        if called in TRAINERS or called in UNSUPPORTED:
            return called
        bases = map(ast.unparse, source.classes[known].bases if known in source.classes else ())
        waiting += [base for base in (base.rpartition(".")[2] for base in bases) if base not in waiting]
    return None


def _constructor_problems(name: str, source: _Source, given: set[str], where: str) -> Iterator[UserError]:
    """Yield an error if a class's own `__init__` needs an argument that no key sets."""
    body = source.classes[name].body if name in source.classes else []
    for function in (item for item in body if isinstance(item, ast.FunctionDef) and item.name == "__init__"):
        args = function.args
        positional = [*args.posonlyargs, *args.args]
        needed = positional[: len(positional) - len(args.defaults)]
        needed += [arg for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True) if default is None]
        if unknown := [arg.arg for arg in needed if arg.arg not in given]:
            what = f"{name} needs an argument {unknown[0]!r} that no key sets"
            expected = "arguments of TRL's class, and others with a default"
            got = f"__init__({', '.join(arg.arg for arg in positional)})"
            yield ConfigError(what, where=where, got=got, expected=expected)
