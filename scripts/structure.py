"""The structure of the package: imports, circles of imports, file names that occur twice.

Rooms are the folders directly below `rlhf_cli/` and its top-level modules. An import inside a function counts like one
at the top. `tests/house/test_rooms.py` fails on any circle.
"""

from __future__ import annotations

import ast
import graphlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "rlhf_cli"

Graph = dict[str, set[str]]
"""Name -> imported names."""


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Return dotted module name -> file, for every module of the package."""
    found = {}
    for file in sorted((root / PACKAGE).rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imported_names(source: str) -> Iterator[str]:
    """Yield dotted names of the package that a source text imports anywhere: `rlhf_cli.config.compose.Composed`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == PACKAGE)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == PACKAGE:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def file_graph(known: Mapping[str, Path]) -> Graph:
    """Return module -> imported modules; for `from package import name` the module `name`, if it is one."""
    graph: Graph = {}
    for module, file in known.items():
        targets = set()
        for name in imported_names(file.read_text(encoding="utf-8")):
            while name not in known and "." in name:
                name = name.rpartition(".")[0]
            targets.add(name)
        graph[module] = {target for target in targets if target in known} - {module}
    return graph


def room_of(module: str) -> str:
    """Return the room: `rlhf_cli.config.rules.trainer_rules` -> `config`."""
    return module.split(".")[1] if "." in module else module


def room_graph(files: Graph) -> Graph:
    """Return room -> the rooms that its files import."""
    rooms: Graph = defaultdict(set)
    for module, targets in files.items():
        # The package itself holds only its version.
        rooms[room_of(module)] |= {room_of(target) for target in targets if target != PACKAGE} - {room_of(module)}
    return dict(rooms)


def circle(graph: Graph) -> list[str]:
    """Return the names of one circle in order, the first one again at its end; [] if there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def shared_basenames(files: Iterable[Path]) -> dict[str, list[Path]]:
    """Return file name -> its files, if there are several, without `__init__.py`."""
    by_name: dict[str, list[Path]] = defaultdict(list)
    for file in files:
        by_name[file.name].append(file)
    return {name: same for name, same in sorted(by_name.items()) if len(same) > 1 and name != "__init__.py"}
