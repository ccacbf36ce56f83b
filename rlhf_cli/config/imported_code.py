"""Find the user's own files that a run imports, and hash them.

Reading the source runs no code and also finds imports inside functions. A module name computed at run time is known
only after the import. The user's own files are those below the working folder, beside a named file, or in a folder that
PYTHONPATH or the user's code added to `sys.path`; not installed packages or this package.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.text.regular_files import parse_python

_KEY = "code["
_IMPORTING_CALLS = ("import_module", "__import__")
_INSTALLED = ("site-packages", "dist-packages")
_STANDARD = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "scripts")}
"""The standard library, and the commands that pip installs, such as `rlhf` itself: an update of pip rewrites them."""
_NOT_THEIRS = (*_STANDARD, Path(__file__).resolve().parents[1])
_PATH_AT_START = frozenset(sys.path)


def imported_code(experiment: Experiment) -> dict[str, Path]:
    """Return the user's files that an experiment names or imports, or its model's code, by their provenance names."""
    folders = code_folders(experiment)
    waiting = [place for module in _modules(experiment) for place in _files_of(module, folders)]
    model, found = experiment.model, set[Path]()
    if model.trust_remote_code and model.path and (folder := Path(model.path).expanduser()).is_dir():
        found = {file.resolve() for file in folder.rglob("*.py")}
    while waiting:
        file, package = waiting.pop()
        file = file.resolve()
        if file in found or not _is_users(file, folders):
            continue
        found.add(file)
        for name in _imports(file, package):
            waiting += _files_of(name, folders)
    return {f"{_KEY}{file}]": file for file in sorted(found)}


def imported_since(known: frozenset[str], experiment: Experiment) -> dict[str, Path]:
    """Return the user's files imported since `sys.modules` held `known`, except those named in the configuration."""
    folders = code_folders(experiment)
    named = {file.resolve() for module in _modules(experiment) for file, _ in list(_files_of(module, folders))[-1:]}
    files = [getattr(module, "__file__", None) for name, module in list(sys.modules.items()) if name not in known]
    # Most modules are the standard library's: their text shows it, because resolving each takes long.
    theirs = [file for file in files if isinstance(file, str) and not file.startswith(tuple(map(str, _NOT_THEIRS)))]
    own = {Path(file).resolve() for file in theirs if not any(map(file.__contains__, _INSTALLED))}
    return {f"{_KEY}{file}]": file for file in sorted(own - named) if _is_users(file, folders)}


def noted_code(hashes: Iterable[str]) -> dict[str, Path]:
    """Return the imported files in a provenance, with their names there."""
    return {name: Path(name.removeprefix(_KEY)[:-1]) for name in hashes if name.startswith(_KEY)}


def code_folders(experiment: Experiment) -> set[Path]:
    """Return the folders with Python files of the user's, without those into which pip installed packages."""
    added = [entry for entry in sys.path if entry not in _PATH_AT_START]
    entries = [entry for entry in (*added, *os.environ.get("PYTHONPATH", "").split(os.pathsep)) if entry]
    places = {Path(entry).resolve() for entry in entries}
    folders = {Path.cwd().resolve(), *(place for place in places if not any(place.glob("*.dist-info")))}
    for module in _modules(experiment):
        if module.endswith(".py"):
            folders.add(Path(module).expanduser().resolve().parent)
        elif (spec := importlib.util.find_spec(module.partition(".")[0])) is not None and spec.origin is not None:
            origin = Path(spec.origin).resolve()
            folders.add(origin.parents[1] if spec.submodule_search_locations else origin.parent)
    return folders


def _modules(experiment: Experiment) -> list[str]:
    """Return the modules that the experiment names, without the function: `./file.py`, `package.module`."""
    named = [*(reward.fn for reward in experiment.rewards.values()), experiment.aggregate, experiment.trainer.own_class]
    named += [section.fn for section in (experiment.advantages, experiment.rollout) if section is not None]
    named += [tool.fn for tool in experiment.tools.values()]
    named += [environment.own_class for environment in experiment.environments.values()]
    named += experiment.trainer.callbacks
    return [module for name in named if name and (module := name.rpartition(":")[0])]


def _is_users(file: Path, folders: set[Path]) -> bool:
    """Return whether a file is the user's own code: below one of `folders`, and not installed there."""
    if not any(folder in file.parents for folder in folders) or any(part in _INSTALLED for part in file.parts):
        return False
    return file.is_file() and not any(place in file.parents for place in _NOT_THEIRS)


def _files_of(module: str, folders: set[Path]) -> Iterator[tuple[Path, str]]:
    """Yield `./file.py`, or the files that `import a.b.c` runs, each with the package of its relative imports."""
    if module.endswith(".py"):
        yield Path(module).expanduser(), ""
        return
    search: list[str] | None = [*sys.path, str(Path.cwd()), *map(str, sorted(folders))]
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        spec = PathFinder.find_spec(name, search) if search is not None and parts[depth - 1] else None
        if spec is None:
            return
        is_package = spec.submodule_search_locations is not None
        if spec.origin is not None and spec.has_location:
            yield Path(spec.origin), name if is_package else ".".join(parts[: depth - 1])
        search = list(spec.submodule_search_locations or ()) if is_package else None


def _imports(file: Path, package: str) -> Iterator[str]:
    """Yield the names in `import` statements anywhere in a file, and in literal calls of `import_module`."""
    try:
        tree = parse_python(file.read_bytes()) if file.suffix == ".py" else ast.Module([], [])
    except SyntaxError:
        return  # importing it reports the error
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (package or not node.level):
            above = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and ast.unparse(node.func).endswith(_IMPORTING_CALLS):
            name = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
            yield from [name] if isinstance(name, str) else []
