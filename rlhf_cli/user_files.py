"""Find a user's file, give it a module name that any process with this package imports, and locate the cache folder.

`import rewards` may not find `./rewards.py`. A process that is spawned, such as one of a pool in a reward, imports the
module of a function by its name: it imports this module first, which then finds the file.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import platformdirs

__path__: list[str] = []  # this makes a package of the module


def name_of(path: Path) -> str:
    """Return the module name of a file; it holds the path."""
    return f"{__name__}.{path.stem.replace('.', '_')}_{str(path).encode().hex()}"


def class_file(named: str) -> Path | None:
    """Return the file that defines `./file.py:Class` or `package.module:Class`, without importing it."""
    return module_file(named.rpartition(":")[0])


def module_file(module: str) -> Path | None:
    """Return the file of `a.b.c` or `./file.py`, or None; finds it without importing packages."""
    if module.endswith(".py"):
        return Path(module).expanduser()
    top, *below = module.split(".")
    spec = importlib.util.find_spec(top) if top.isidentifier() else None
    places = () if spec is None else spec.submodule_search_locations or filter(None, [spec.origin])
    stems = [folder.joinpath(top, *below) for folder in (Path.cwd(), *(Path(place).parent for place in places))]
    files = [file for stem in stems for file in (stem.with_suffix(".py"), stem / "__init__.py")]
    return next((file for file in files if file.is_file()), None)


class _Finder:
    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith(f"{__name__}."):
            return None
        if re.search("_([0-9a-f]{2})+$", name) is None:  # `from .other import x` in such a file
            own = name.rpartition(".")[2]
            raise ImportError(f"a file without a package has no relative imports: `from {own} import`, without a dot")
        return importlib.util.spec_from_file_location(name, bytes.fromhex(name.rpartition("_")[2]).decode())


sys.meta_path.append(_Finder)


def cache_folder(name: str) -> Path:
    """Return the subfolder `name` of $RLHF_CACHE or else of the user's cache folder; it may not exist yet."""
    return Path(os.environ.get("RLHF_CACHE") or platformdirs.user_cache_dir("rlhf")) / name
