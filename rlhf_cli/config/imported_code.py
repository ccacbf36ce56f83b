"""Find what a configuration runs: the user's own files that it imports, and the keys that run, submit or send.

Reading the source runs no code and also finds imports inside functions. A module name computed at run time is known
only after the import. The user's own files are those below the working folder, beside a named file, or in a folder that
PYTHONPATH or the user's code added to `sys.path`; not installed packages or this package.

A user of another user's run sees the keys first. A test walks the schema and TRL's arguments, and fails for a key that
is neither here nor known to be harmless.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path

import yaml

from rlhf_cli.config.conf_folders import shipped_dir
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_sections import AGGREGATES
from rlhf_cli.text.json_values import JsonTree, leaves, section
from rlhf_cli.text.regular_files import SAFE_LOADER, parse_python

_KEY = "code["
_IMPORTING_CALLS = ("import_module", "__import__")
_INSTALLED = ("site-packages", "dist-packages")
_STANDARD = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "scripts")}
"""The standard library, and the commands that pip installs, such as `rlhf` itself: an update of pip rewrites them."""
_NOT_THEIRS = (*_STANDARD, Path(__file__).resolve().parents[1])
_PATH_AT_START = frozenset(sys.path)


def imported_code(experiment: Experiment) -> dict[str, Path]:
    """Return the user's files that a run executes: named, imported, or code of a trusted model; by provenance name."""
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


_OF_TRL = (
    "accelerator_config generation_kwargs hub_always_push hub_model_id hub_private_repo hub_revision hub_strategy "
    "log_completions_hub_repo model_init_kwargs optim_args push_to_hub torch_compile_backend trackio_bucket_id "
    "teacher_model_server_url teacher_tokenizer_name_or_path "
    "trackio_space_id trackio_static_space_id vllm_server_base_url vllm_server_host vllm_server_port"
)
ASKED = {f"trainer.args.{name}" for name in _OF_TRL.split()} | {
    *("trainer.class", "trainer.callbacks", "model.trust_remote_code", "launch.slurm", "launch.vllm"),
    *("launch.accelerate_config", "track.entity", "sweep.space", "tools", "environment", "rollout"),
}
"""Keys that are always listed, with all keys below them."""
WORDS = {"aggregate": AGGREGATES, "track.mode": ("offline", "none")}
"""Key -> its values that are not listed."""
_SENDS = ("url", "api_key_env")


def asked_of(config: JsonTree) -> list[str]:
    """Return `key: value` for everything in a configuration that runs, submits or sends, in its order."""
    trusted = section(config, "model").get("trust_remote_code") not in (None, False)
    lines = []
    for key, value in leaves(config):
        runs_with_model = trusted and key.startswith(("model.", "critic.", "teacher.")) and isinstance(value, str)
        is_set = not isinstance(value, dict | list) and value not in (None, False, "")
        if is_set and (runs_with_model or _is_asked(key, value, config)):
            text = value if isinstance(value, str) and value.isprintable() else json.dumps(value, default=str)
            lines.append(f"{key}: {text}")
    return lines


def _is_asked(key: str, value: object, config: JsonTree) -> bool:
    path = key.split(".")
    depth = {"rewards": 2, "advantages": 1}.get(path[0], len(path))
    if path[depth : depth + 1] in (["fn"], ["args"]):
        owner = config if depth == 1 else section(config, path[0])
        fn, name = section(owner, path[depth - 1]).get("fn"), path[depth + 1] if len(path) > depth + 1 else ""
        shown = _shipped_functions().get(fn) if isinstance(fn, str) else None
        is_wall = name != "isolation" or value != "limits"
        if shown is None or (path[depth] == "args" and (name in _SENDS or name not in shown or not is_wall)):
            return True
    return (
        (isinstance(value, str) and "${oc.env:" in value)
        or any(".".join(path[:depth]) in ASKED for depth in range(1, len(path) + 1))
        or (key in WORDS and value not in WORDS[key])
        or (key == "run.root" and (str(value).startswith(("/", "~")) or ".." in str(value)))
    )


@cache
def _shipped_functions() -> dict[str, frozenset[str]]:
    """Return the functions that the shipped conf/reward and conf/advantages name -> the arguments that they show."""
    found: dict[str, frozenset[str]] = {}
    for file in sorted([*shipped_dir().glob("reward/*.yaml"), *shipped_dir().glob("advantages/*.yaml")]):
        reward = yaml.load(file.read_text(encoding="utf-8"), Loader=SAFE_LOADER)
        found[reward["fn"]] = found.get(reward["fn"], frozenset()) | frozenset(reward.get("args") or ())
    return found
