"""Check the classes that `trainer.class` and `trainer.callbacks` name, by reading their source.

Imports are followed from file to file, also those that a package makes only when a name is used (`trl:GRPOTrainer`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
class _Found:
    """A class and the file that defines it; `node` is None if it comes from a module without source."""

    name: str
    file: Path
    node: ast.ClassDef | None


def trainer_class_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield an error if the class does not exist, or if it inherits from another TRL trainer.

    If the source does not show all bases, the class is checked after its import.
    """
    named = experiment.trainer.own_class
    if named is None:
        return
    found = _find(named, _CLASS, origins.where(_CLASS))
    if isinstance(found, ConfigError):
        yield found
        return
    yield from _base_problems(found, experiment.trainer.trl, origins.where(_CLASS))
    given = _GIVEN | ({"teacher_model"} if experiment.teacher is not None else set())
    yield from _constructor_problems(found, given, origins.where(_CLASS))


def callback_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield an error for each callback that does not exist, has no base, or whose constructor needs an argument."""
    for number, named in enumerate(experiment.trainer.callbacks):
        where = origins.where(f"{_CALLBACKS}.{number}")
        found = _find(named, _CALLBACKS, where)
        if isinstance(found, ConfigError):
            yield found
        elif found.node is not None and not found.node.bases:
            expected = f"class {found.name}(transformers.TrainerCallback)"
            yield ConfigError("this is no callback", where=where, got=f"class {found.name}", expected=expected)
        else:
            yield from _constructor_problems(found, {"self"}, where)


def _find(named: str, key: str, where: str) -> _Found | ConfigError:
    """Return the class that `key` names, or an error that says what is missing."""
    module, colon, name = named.rpartition(":")
    file = class_file(named)
    if not colon or not name.isidentifier():
        return ConfigError("this is not the name of a class", where=where, got=named, expected=_FORM)
    if file is None or not file.is_file():
        return ConfigError("the file or module does not exist", where=where, got=module, expected=_FORM)
    try:
        if (found := _definition(name, file)) is not None:
            return found
        body = parse_python(file.read_bytes()).body
    except SyntaxError as error:
        return ConfigError(f"{file.name} cannot be read as Python", where=where, got=str(error))
    classes = [node.name for node in body if isinstance(node, ast.ClassDef)]
    close, value = nearest(name, classes), "{}" if key == _CLASS else "'[{}]'"
    expected = "one of " + ", ".join(classes) if classes else "a class defined in that file"
    hint = f"{key}={value.format(f'{module}:{close}')}" if close else None
    return ConfigError(f"{file.name} has no class {name!r}", where=where, got=named, expected=expected, hint=hint)


def _definition(name: str, file: Path, hops: int = 8) -> _Found | None:
    """Return the class that has this name in a file, followed through imports; None if the file does not mention it.

    It follows at most `hops` imports. Raise SyntaxError if a file on the way is not valid Python.
    """
    tree = parse_python(file.read_bytes())
    for node in ast.walk(tree):  # also below `if` and `try`
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _Found(name, file, node)
    # A package that imports lazily names its classes below TYPE_CHECKING.
    for statement in [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]:
        for alias in statement.names:
            if name == (alias.asname or alias.name):
                source = _imported_file(statement, file)
                further = _definition(alias.name, source, hops - 1) if source is not None and hops else None
                return further or _Found(alias.name, file, None)
    assigned = [target for node in ast.walk(tree) if isinstance(node, ast.Assign) for target in node.targets]
    return _Found(name, file, None) if name in map(ast.unparse, assigned) else None


def _imported_file(node: ast.ImportFrom, file: Path) -> Path | None:
    """Return the file of `from MODULE import ...` in `file`."""
    if node.level == 0:
        return class_file(f"{node.module}:")
    stem = file.parents[node.level - 1].joinpath(*(node.module or "").split("."))
    return next((place for place in (stem.with_suffix(".py"), stem / "__init__.py") if place.is_file()), None)


def _bases(found: _Found) -> Iterator[str]:
    """Yield the names of a class's bases, the nearest first, as far as their sources can be read."""
    waiting = [found]
    for known in waiting:  # which grows
        for base in known.node.bases if known.node is not None else ():
            called = base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""
            further = _definition(called, known.file) if isinstance(base, ast.Name) else None
            yield further.name if further is not None else called
            waiting += [further] if further is not None else []


def _base_problems(found: _Found, trl: str, where: str) -> Iterator[UserError]:
    """Yield an error for a class whose source shows that it is no `trainer.trl`."""
    is_trls, known = "trl" in found.file.parts, {*TRAINERS, *UNSUPPORTED}
    names = iter([found.name]) if (is_trls or found.node is None) and found.name in known else _bases(found)
    base = next((name for name in names if name in known), None)
    if base == trl or (base is None and not is_trls):
        return
    what = f"{found.name} inherits from {base}" if found.name != base else f"this is TRL's {base}"
    if base in TRAINERS:
        option = f"trainer.trl={base}"
        got, expected, hint = f"trainer.trl={trl}", f"a subclass of {trl}", option
        yield ConfigError(f"{what}, but trainer.trl is {trl}", where=where, got=got, expected=expected, hint=hint)
    elif base is not None:
        refused = UNSUPPORTED[base]
        what, hint = f"rlhf does not run {base}: {refused.why}", f"'~{_CLASS}'"
        yield ConfigError(what, where=where, got=found.name, hint=hint, advice=refused.instead)
    else:
        expected = f"a subclass of one of {', '.join(TRAINERS)}"
        yield ConfigError(f"{found.name} is no trainer", where=where, expected=expected, hint="rlhf list trainer")


def _constructor_problems(found: _Found, given: set[str], where: str) -> Iterator[UserError]:
    """Yield an error if a class's own `__init__` needs an argument that no key sets."""
    for function in [item for item in (found.node.body if found.node else ()) if isinstance(item, ast.FunctionDef)]:
        args = function.args
        positional = [*args.posonlyargs, *args.args]
        needed = positional[: len(positional) - len(args.defaults)]
        needed += [arg for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True) if default is None]
        unknown = [arg.arg for arg in needed if arg.arg not in given]
        if function.name == "__init__" and unknown:
            what = f"{found.name} needs an argument {unknown[0]!r} that no key sets"
            expected = "arguments of TRL's class, and others with a default"
            got = f"__init__({', '.join(arg.arg for arg in positional)})"
            yield ConfigError(what, where=where, got=got, expected=expected)
