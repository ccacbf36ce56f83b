"""Checks `trainer.class`, a user's class, by reading its source, because importing it would import TRL."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from rlhf_cli.config import trl_args
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError, UserError
from rlhf_cli.suggest import nearest
from rlhf_cli.tables.trl_trainers import TRAINERS

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
