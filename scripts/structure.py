"""The structure of the package as it is now: imports, circles of them, names that two files share.

Rooms are the folders directly below `rlhf_cli/` (and its top-level modules), files its modules. An import inside a
function counts like one at the top: it is a way the code goes. `tests/house/test_rooms.py` fails on any circle.
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
"""Name -> the names it imports."""


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Dotted module name -> file, for every module of the package."""
    found = {}
    for file in sorted((root / PACKAGE).rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imported_names(source: str) -> Iterator[str]:
    """Dotted names below the package that a source text imports, wherever in it: `rlhf_cli.config.compose.Composed`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == PACKAGE)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == PACKAGE:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def file_graph(known: Mapping[str, Path]) -> Graph:
    """Module -> the modules it imports; of `from package import name` the module `name`, where it is one."""
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
    """`rlhf_cli.config.rules.trainer_rules` -> `config`; a top-level module is a room of its own."""
    return module.split(".")[1] if "." in module else module


def room_graph(files: Graph) -> Graph:
    """Room -> the rooms that its files import."""
    rooms: Graph = defaultdict(set)
    for module, targets in files.items():
        # The package itself holds its version and nothing else.
        rooms[room_of(module)] |= {room_of(target) for target in targets if target != PACKAGE} - {room_of(module)}
    return dict(rooms)


def circle(graph: Graph) -> list[str]:
    """Return the names of one circle in their order, the first one again at its end; [] if there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def shared_basenames(files: Iterable[Path]) -> dict[str, list[Path]]:
    """File name -> the files that bear it, where there are several; `__init__.py` aside."""
    by_name: dict[str, list[Path]] = defaultdict(list)
    for file in files:
        by_name[file.name].append(file)
    return {name: same for name, same in sorted(by_name.items()) if len(same) > 1 and name != "__init__.py"}
